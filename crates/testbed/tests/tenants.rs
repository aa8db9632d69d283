//! Two tenants on one control plane: each tries to harm the other in the ways of [`ROWS`], which name rows of `docs/operate/threats-*.md`.
//!
//! A tenant is a namespace with two ServiceAccounts: the *member* may create our kinds, and the *owner* has the cluster role
//! `admin` in the namespace. What runs: a real API server with our webhooks and policies, the core, the direct provider and the
//! AsyncActor operator, a real RabbitMQ with a user for each namespace, the programs of the model router and of asya-gateway, and
//! the console. No pod runs: the test listens at the address of the pod of each model, and answers jobs as a sidecar would.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use axum::Router;
use axum::http::{Method, Request, header};
use axum::routing::{get, post};
use futures::future::{LocalBoxFuture, join_all};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use lapin::BasicProperties;
use runway_api::async_actor::TRANSPORT_READY;
use runway_api::condition::Conditions as _;
use runway_api::{AsyncActor, ModelDeployment, labels};
use runway_asya_testbed::pipeline::Broker;
use runway_http::Limits;
use runway_manifests::{self as manifests, Release, gateway, router};
use runway_operator::lease::Leadership;
use runway_product_testbed::program::{self, Program};
use runway_product_testbed::served::Served;
use runway_product_testbed::{Bed, PATIENCE, Running, Upstream};
use runway_provider_direct::Direct;
use runway_router::AUDIENCE;
use runway_testbed::engine::CHAT;
use runway_testbed::tokens::token;
use runway_testbed::traffic::client::{Begun, chat, request};
use runway_testbed::{RabbitMq, RabbitMqOptions, eventually, free_ports, own_address, programs};
use runway_web::server::LoginOptions;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

const THREATS: [&str; 2] = [
    include_str!("../../../docs/operate/threats-access.md"),
    include_str!("../../../docs/operate/threats-availability.md"),
];
/// Places of a tenant at the router.
const PLACES: usize = 8;
/// Bytes of the largest body at the router, which has memory for four.
const BODY: usize = 256 * 1024;
/// Time in which an object that nothing changes stays as it is. Controllers write the last message after 5 seconds.
const QUIET: Duration = Duration::from_secs(7);

type By = for<'a> fn(&'a World, &'a Tenant, &'a Tenant) -> LocalBoxFuture<'a, Result<Vec<Attempt>>>;

/// A way to harm another tenant.
struct Row {
    /// The attempt, as a phrase with a verb.
    attempt: &'static str,
    /// Words of the response to each attempt. `OTHER` is the namespace of the other tenant.
    response: &'static str,
    /// Row of the threat model.
    threat: &'static str,
    by: By,
}

/// A request or message of an attacker, and the response.
struct Attempt {
    wrote: String,
    response: String,
}

const ROWS: &[Row] = &[
    Row {
        attempt: "uses the other's model, by each of its names, with a token and with a key",
        response: "model_not_found",
        threat: "a caller of the model router uses a model, or learns its name, without the right to it",
        by: |world, attacker, other| Box::pin(uses_model(world, attacker, other)),
    },
    Row {
        attempt: "lists models",
        response: "200",
        threat: "a caller of the model router uses a model, or learns its name, without the right to it",
        by: |world, attacker, _| Box::pin(lists_models(world, attacker)),
    },
    Row {
        attempt: "gives its own model the names of the other's, or declares it to be a stand-in: callers of the other reach their own",
        response: "engine of OTHER",
        threat: "a team takes over a name of another team's model at the router",
        by: |world, attacker, other| Box::pin(takes_name(world, attacker, other)),
    },
    Row {
        attempt: "makes the router call the other's engine by an ExternalName",
        response: "spec.type is ExternalName",
        threat: SERVICE_THAT_LEADS_ELSEWHERE,
        by: |world, attacker, other| Box::pin(leads_by_name(world, attacker, other)),
    },
    Row {
        attempt: "makes the router call the other's engine by a Service without a selector",
        response: "spec.selector is empty",
        threat: SERVICE_THAT_LEADS_ELSEWHERE,
        by: |world, attacker, _| Box::pin(leads_by_hand(world, attacker)),
    },
    Row {
        attempt: "writes endpoints of its own Service by hand",
        response: "is forbidden",
        threat: SERVICE_THAT_LEADS_ELSEWHERE,
        by: |world, attacker, _| Box::pin(writes_endpoints(world, attacker)),
    },
    Row {
        attempt: "takes all places of the router",
        response: "your tenant has too many requests in flight",
        threat: ROUTER_IS_EXHAUSTED,
        by: |world, attacker, other| Box::pin(takes_places(world, attacker, other)),
    },
    Row {
        attempt: "takes all memory of the router for bodies",
        response: "one tenant at most half of what others leave",
        threat: ROUTER_IS_EXHAUSTED,
        by: |world, attacker, other| Box::pin(takes_bodies(world, attacker, other)),
    },
    Row {
        attempt: "takes all places of asya-gateway for waits",
        response: "too_many_waits",
        threat: "callers of asya-gateway exhaust its memory, its places or its disk: large bodies, waits, responses that they do not read",
        by: |world, attacker, other| Box::pin(takes_waits(world, attacker, other)),
    },
    Row {
        attempt: "sends to the other's actor, also as the second of a route",
        response: "\"code\":\"forbidden\"",
        threat: JOBS_OF_OTHERS,
        by: |world, attacker, other| Box::pin(submits(world, attacker, other)),
    },
    Row {
        attempt: "reads and cancels the other's job",
        response: "job not found: it may have been removed",
        threat: JOBS_OF_OTHERS,
        by: |world, attacker, other| Box::pin(reads_job(world, attacker, other)),
    },
    Row {
        attempt: "uses the other's idempotency key: it gets a job of its own",
        response: "\"status\":\"pending\"",
        threat: "a caller of asya-gateway gets the job of another user by the same idempotency key",
        by: |world, attacker, other| Box::pin(uses_idempotency_key(world, attacker, other)),
    },
    Row {
        attempt: "reads, redrives and deletes the other's dead letters, and reads the numbers of its queue",
        response: "\"code\":\"forbidden\"",
        threat: "a caller of asya-gateway reads payloads of others in dead letters, or redrives or deletes them",
        by: |world, attacker, other| Box::pin(uses_dead_letters(world, attacker, other)),
    },
    Row {
        attempt: "reads, empties, deletes and binds the other's queues with its own user of the broker, and publishes to them",
        response: "ACCESS_REFUSED",
        threat: MESSAGES_AT_THE_BROKER,
        by: |world, attacker, other| Box::pin(uses_queues(world, attacker, other)),
    },
    Row {
        attempt: "publishes to the other's queue through its own exchange",
        response: "has no queue",
        threat: MESSAGES_AT_THE_BROKER,
        by: |world, attacker, other| Box::pin(publishes_by_own_exchange(world, attacker, other)),
    },
    Row {
        attempt: "reads the Secret with the other's user of the broker",
        response: "is forbidden",
        threat: MESSAGES_AT_THE_BROKER,
        by: |_, attacker, other| Box::pin(reads_secret(attacker, other)),
    },
    Row {
        attempt: "publishes a reply as the other's user",
        response: "user_id",
        threat: JOB_IS_ANSWERED_BY_OTHERS,
        by: |world, attacker, other| Box::pin(forges_sender(world, attacker, other)),
    },
    Row {
        attempt: "publishes a reply to the other's job as itself: the job is still pending",
        response: "\"status\":\"pending\"",
        threat: JOB_IS_ANSWERED_BY_OTHERS,
        by: |world, attacker, other| Box::pin(forges_reply(world, attacker, other)),
    },
    Row {
        attempt: "uses the transport that is for the other's namespace",
        response: "is not available to namespace",
        threat: "a namespace uses a broker that is meant for others",
        by: |world, attacker, other| Box::pin(uses_transport(world, attacker, other)),
    },
    Row {
        attempt: "adds itself to the namespaces of a transport",
        response: "is forbidden",
        threat: "a namespace uses a broker that is meant for others",
        by: |_, attacker, _| Box::pin(changes_transports(attacker)),
    },
    Row {
        attempt: "gives a sidecar the identity of the other's actor",
        response: "is reserved",
        threat: "an actor takes the identity of another: variables of its sidecar name another actor, namespace or broker",
        by: |_, attacker, other| Box::pin(takes_identity(attacker, other)),
    },
    Row {
        attempt: "binds a workload of the other's namespace",
        response: "workloadRef.namespace",
        threat: CHANGES_A_WORKLOAD,
        by: |_, attacker, other| Box::pin(binds_by_namespace(attacker, other)),
    },
    Row {
        attempt: "binds a workload of its own namespace that it may not update",
        response: "you may not bind to Deployment",
        threat: CHANGES_A_WORKLOAD,
        by: |_, attacker, _| Box::pin(binds_without_permission(attacker)),
    },
    Row {
        attempt: "creates, changes and deletes objects in the other's namespace",
        response: "is forbidden",
        threat: CHANGES_A_WORKLOAD,
        by: |_, attacker, other| Box::pin(writes_elsewhere(attacker, other)),
    },
    Row {
        attempt: "creates a LoadBalancer, an Ingress, pods with another ServiceAccount and volumes of the node by fields of our kinds",
        response: "you may not create",
        threat: "the creator of one of our kinds indirectly creates an Ingress, a LoadBalancer, a NetworkPolicy, a privileged pod or a pod with another ServiceAccount without permission to create them",
        by: |_, attacker, _| Box::pin(goes_beyond(attacker)),
    },
    Row {
        attempt: "sets fields of the upstream object that no key of `overrides` has",
        response: "hostNetwork",
        threat: "`overrides` set fields of the upstream object that affect permissions",
        by: |world, attacker, _| Box::pin(overrides(world, attacker)),
    },
    Row {
        attempt: "creates a workload with the name, the labels and the owner of the other's model: that keeps its own",
        response: "is the owner of 1 in OTHER",
        threat: "an object of another owner has the name of a child: it is adopted, then deleted",
        by: |world, attacker, other| Box::pin(takes_ownership(world, attacker, other)),
    },
    Row {
        attempt: "reads and deletes the other's objects through the console",
        response: "403 ",
        threat: "the console shows one user what only another may see",
        by: |world, attacker, other| Box::pin(uses_console(world, attacker, other)),
    },
    Row {
        attempt: "reads the other's actor through the console",
        response: "AsyncActor not found, or you may not read it",
        threat: "the console shows one user what only another may see",
        by: |world, attacker, other| Box::pin(reads_actor_in_console(world, attacker, other)),
    },
    Row {
        attempt: "lists objects in the console",
        response: "200 ",
        threat: "the console shows one user what only another may see",
        by: |world, attacker, _| Box::pin(lists_in_console(world, attacker)),
    },
    Row {
        attempt: "leaves its namespace in the console by a name",
        response: "invalid name",
        threat: "an invalid name in the command or the console (`?`, `/`, `%2F`) reaches another path of the API server",
        by: |world, attacker, other| Box::pin(leaves_namespace(world, attacker, other)),
    },
];

const SERVICE_THAT_LEADS_ELSEWHERE: &str = "a Service of a user (ExternalName, without a selector, or with endpoints made by hand) makes the router, a provider or the Llama Stack operator call an address that the user cannot reach";
const ROUTER_IS_EXHAUSTED: &str = "callers of the model router exhaust its memory or its connections: large bodies, many requests, responses that they do not read";
const JOBS_OF_OTHERS: &str = "a caller of asya-gateway sends to actors, or reads jobs, of others";
const MESSAGES_AT_THE_BROKER: &str =
    "a namespace reads, changes or deletes the messages of another at the broker, or sends to its actors";
const JOB_IS_ANSWERED_BY_OTHERS: &str = "a namespace answers the job of another";
const CHANGES_A_WORKLOAD: &str = "a workload is changed by an actor whose creator could not change it";

#[test]
fn rows_of_the_threat_model_name_this_test() {
    for Row { threat, .. } in ROWS {
        let start = format!("| {threat} | ");
        let mut rows = THREATS.into_iter().flat_map(str::lines);
        let row = rows.find(|line| line.starts_with(&start));
        let is_named =
            row.is_some_and(|row| row.contains("crates/testbed/tests/tenants.rs::two_tenants_cannot_harm_each_other`"));
        assert!(is_named, "{threat}: {row:?}");
    }
}

#[allow(clippy::print_stdout, reason = "the table is of use when the test passes, too")]
#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_cannot_harm_each_other() -> Result<()> {
    let world = World::start().await?;
    let (a, b) = (
        world.tenant("team-a", "amber").await?,
        world.tenant("team-b", "birch").await?,
    );
    let mut failures = Vec::new();
    for (attacker, other) in [(&a, &b), (&b, &a)] {
        let before = world.state(other).await?;
        for row in ROWS {
            let judged = match (row.by)(&world, attacker, other).await {
                Ok(attempts) => judge(row, &attempts, other),
                Err(error) => Err(error),
            };
            let works = world.still_works(other).await.context("after it");
            let result = judged.and(works);
            println!(
                "{} {}: {}",
                attacker.namespace,
                row.attempt,
                result.as_ref().map_or("FAILED", |()| row.response)
            );
            if let Err(error) = result {
                failures.push(format!("{} {}: {error:#}", attacker.namespace, row.attempt));
            }
        }
        let after = world.state(other).await?;
        for key in before.keys().chain(after.keys()) {
            if before.get(key) != after.get(key) {
                failures.push(format!(
                    "{key} has changed: {:?}, {:?}",
                    before.get(key),
                    after.get(key)
                ));
            }
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    for tenant in [&a, &b] {
        world.finishes(tenant).await.context(tenant.namespace)?;
    }
    Ok(())
}

/// Every response has the words of the row, and no name of the other tenant that the attacker did not write.
fn judge(row: &Row, attempts: &[Attempt], other: &Tenant) -> Result<()> {
    let words = row.response.replace("OTHER", other.namespace);
    ensure!(!attempts.is_empty(), "nothing was attempted");
    for Attempt { wrote, response } in attempts {
        ensure!(response.contains(&words), "{wrote}\nwas answered: {response}");
        for private in other.private() {
            let is_shown = response.contains(&private) && !wrote.contains(&private);
            ensure!(!is_shown, "{wrote}\nwas shown {private}: {response}");
        }
    }
    Ok(())
}

/// The control plane, and what tenants share.
struct World {
    bed: Bed,
    address: IpAddr,
    broker: Broker,
    router: SocketAddr,
    gateway: SocketAddr,
    console: Served,
    folder: tempfile::TempDir,
    rabbit: RabbitMq,
    _programs: [Program; 2],
    _controllers: [Running; 3],
}

/// A tenant with a model, an actor, a workload, a job and a dead letter.
struct Tenant {
    namespace: &'static str,
    /// First part of the names of its objects.
    word: &'static str,
    owner: Client,
    member: Client,
    /// Tokens of the owner.
    for_router: String,
    for_gateway: String,
    cookie: String,
    /// URL of the broker with its own user.
    broker: String,
    engine: Engine,
    job: String,
}

/// An engine that counts requests.
struct Engine {
    port: u16,
    asked: Arc<AtomicUsize>,
    /// Requests of its own tenant.
    expected: AtomicUsize,
    _end: DropGuard,
}

impl Tenant {
    fn named(&self, what: &str) -> String {
        format!("{}-{what}", self.word)
    }

    /// Texts that others must not learn.
    fn private(&self) -> Vec<String> {
        let mut names: Vec<_> = ["model", "idle", "served", "actor", "tool", "payload", "letter", "order"]
            .map(|what| self.named(what))
            .into();
        names.push(self.job.clone());
        names
    }

    fn key(&self) -> String {
        format!("key of a program of {}", self.namespace)
    }

    fn queue(&self, suffix: &str) -> String {
        format!("asya-{}_{}-actor{suffix}", self.namespace, self.word)
    }

    fn path(&self, group: &str, plural: &str) -> String {
        let root = if group == "v1" { "/api" } else { "/apis" };
        format!("{root}/{group}/namespaces/{}/{plural}", self.namespace)
    }
}

impl Engine {
    async fn start(namespace: &'static str) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
        let port = listener.local_addr()?.port();
        let asked = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&asked);
        let answer = move || async move {
            counted.fetch_add(1, Ordering::SeqCst);
            format!("engine of {namespace}")
        };
        let list = async || axum::Json(json!({ "data": [{ "id": "m" }] }));
        let routes = Router::new().route("/v1/models", get(list)).route(CHAT, post(answer));
        let end = CancellationToken::new();
        let limits = Limits {
            body: 2 * BODY,
            ..Limits::ADMIN
        };
        tokio::spawn(runway_http::serve(listener, None, routes, limits, end.clone()));
        Ok(Self {
            port,
            asked,
            expected: AtomicUsize::default(),
            _end: end.drop_guard(),
        })
    }
}

impl World {
    async fn start() -> Result<Self> {
        let folder = programs::build(false).await?;
        let options = RabbitMqOptions {
            management: true,
            ..RabbitMqOptions::default()
        };
        let (bed, rabbit) = tokio::try_join!(Bed::start_with(Upstream::Everything, true), RabbitMq::start(options))?;
        let broker = Broker::connect(&rabbit.url()).await?;
        for object in manifests::core().objects(&Release::default()) {
            let is_role = object.types.as_ref().is_some_and(|types| types.kind == "ClusterRole");
            if is_role && object.name_any().starts_with("kubeairunway-") {
                bed.apply(&serde_json::to_value(&object)?).await?;
            }
        }
        let mut objects: Vec<_> = manifests::components()
            .into_iter()
            .flat_map(|component| component.permissions)
            .collect();
        objects.extend(manifests::asya().extra);
        for object in objects {
            bed.apply(&serde_json::to_value(&object)?).await?;
        }
        for program in [router::router(), gateway::gateway()] {
            bed.grant(&program).await?;
        }
        // Not a part of the roles of the product.
        let rules = json!([{ "apiGroups": ["asya.sh"], "resources": ["asyncactors"], "verbs": ["*"] }]);
        bed.apply(
            &json!({ "apiVersion": RBAC, "kind": "ClusterRole", "metadata": { "name": "actors" }, "rules": rules }),
        )
        .await?;

        let secrets = tempfile::tempdir()?;
        let transports = transports(&rabbit, secrets.path())?;
        let args = runway_asya_operator::Args {
            disable_queue_management: false,
            secrets: runway_asya_operator::SecretsArgs {
                secrets_dir: secrets.path().join("secrets"),
            },
            ..runway_product_testbed::asya_args(&transports.to_string())
        };
        let controllers = [
            bed.core().await?,
            bed.provider(Direct::default()).await?,
            bed.asya_led_by(Leadership::always(), args).await?,
        ];
        bed.admission_is_up().await?;
        std::fs::create_dir(secrets.path().join("keys"))?;
        let [port, admin, at_gateway, progress, of_gateway] = free_ports()?;
        let local = |port: u16| format!("127.0.0.1:{port}");
        let router = [
            format!("--kubeconfig={}", bed.cluster.kubeconfig(router::NAME, &[])?.display()),
            format!("--address={}", local(port)),
            format!("--admin-address={}", local(admin)),
            format!("--keys-dir={}", secrets.path().join("keys").display()),
            format!("--largest-requests-of-caller={PLACES}"),
            format!("--largest-body={BODY}"),
            "--memory=1".to_owned(),
        ];
        let router = Program::start(&folder, "kubeairunway-gateway", &router, &[])?;
        let asya = [
            format!("--kubeconfig={}", bed.cluster.kubeconfig(gateway::NAME, &[])?.display()),
            format!("--address={}", local(at_gateway)),
            format!("--progress-address={}", local(progress)),
            format!("--admin-address={}", local(of_gateway)),
            format!("--transport-config={transports}"),
            "--transport=rabbitmq".to_owned(),
            format!("--secrets-dir={}", secrets.path().join("secrets").display()),
            format!("--store={}", secrets.path().join("jobs.redb").display()),
            "--largest-waits=16".to_owned(),
        ];
        let asya = Program::start(&folder, "asya-gateway", &asya, &[])?;
        tokio::try_join!(program::ready(admin), program::ready(of_gateway))?;
        let login = LoginOptions {
            sites: vec!["https://console.test".parse()?],
            ..LoginOptions::default()
        };
        Ok(Self {
            console: Served::start(&bed.cluster, Some(login)).await?,
            bed,
            address: own_address()?,
            broker,
            router: (Ipv4Addr::LOCALHOST, port).into(),
            gateway: (Ipv4Addr::LOCALHOST, at_gateway).into(),
            folder: secrets,
            rabbit,
            _programs: [router, asya],
            _controllers: controllers,
        })
    }

    async fn tenant(&self, namespace: &'static str, word: &'static str) -> Result<Tenant> {
        let bed = &self.bed;
        bed.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } }))
            .await?;
        let subject = |account: &str| json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]);
        for (account, roles) in [
            ("owner", &["admin", "actors"][..]),
            ("member", &["kubeairunway-view", "kubeairunway-edit", "actors"]),
        ] {
            bed.apply(&json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": account, "namespace": namespace } }))
                .await?;
            for role in roles {
                bed.apply(&json!({ "apiVersion": RBAC, "kind": "RoleBinding",
                    "metadata": { "name": format!("{account}-{role}"), "namespace": namespace },
                    "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role }, "subjects": subject(account) }))
                    .await?;
            }
        }
        let client = async |account: &str| {
            bed.cluster
                .client(&format!("system:serviceaccount:{namespace}:{account}"), &[])
                .await
        };
        let for_console = token(&bed.admin, namespace, "owner", &[]).await?;
        let mut tenant = Tenant {
            namespace,
            word,
            owner: client("owner").await?,
            member: client("member").await?,
            for_router: token(&bed.admin, namespace, "owner", &[AUDIENCE]).await?,
            cookie: self.sign_in(&for_console).await?,
            for_gateway: token(&bed.admin, namespace, "owner", &[gateway::NAME]).await?,
            broker: String::new(),
            engine: Engine::start(namespace).await?,
            job: "(none yet)".to_owned(),
        };
        let key = json!({ "key": tenant.key(), "models": [format!("{namespace}/*")] });
        std::fs::write(self.folder.path().join("keys").join(namespace), key.to_string())?;

        // Roles are added up in the background.
        let model = model(&tenant.named("model"), &tenant.named("served"));
        eventually(PATIENCE, async || {
            accepted(&create(&tenant.owner, &tenant, MODELS, &model).await?)
        })
        .await?;
        self.serves(&tenant, &tenant.named("model"), &selected(&tenant.named("model")))
            .await?;
        self.pod(&tenant, &tenant.named("model")).await?;
        let mut idle = runway_product_testbed::vllm(&tenant.named("idle"), "direct");
        idle["metadata"]["namespace"] = json!(namespace);
        idle["spec"]["scaling"]["replicas"] = json!(0);
        accepted(&create(&tenant.owner, &tenant, MODELS, &idle).await?)?;
        let tool = workload(&tenant.named("tool"));
        accepted(&create(&tenant.owner, &tenant, DEPLOYMENTS, &tool).await?)?;
        accepted(
            &create(
                &tenant.owner,
                &tenant,
                ACTORS,
                &own_actor(&tenant.named("actor"), "rabbitmq"),
            )
            .await?,
        )?;
        let actors: Api<AsyncActor> = Api::namespaced(bed.admin.clone(), namespace);
        eventually(PATIENCE, async || {
            let status = actors.get(&tenant.named("actor")).await?.status.unwrap_or_default();
            ensure!(status.conditions.is_true(TRANSPORT_READY), "{status:?}");
            Ok(())
        })
        .await?;
        tenant.broker = self.broker_of(namespace).await?;

        let path = format!("/v1/{namespace}/{}", tenant.named("actor"));
        let payload = json!({ "text": tenant.named("payload") }).to_string();
        let headers = [("idempotency-key", &*tenant.named("order"))];
        let submitted = self
            .ask_gateway(&tenant, Method::POST, &path, &headers, &payload)
            .await?;
        let job: Value = serde_json::from_str(submitted.response.split_once(' ').context("no body")?.1)?;
        tenant.job = job["id"]
            .as_str()
            .with_context(|| submitted.response.clone())?
            .to_owned();
        let letter = json!({ "id": tenant.named("letter"), "payload": tenant.named("payload"),
            "route": { "actors": [tenant.named("actor")], "current": 0 } });
        self.broker
            .publish(&tenant.queue("_dlq"), letter.to_string().as_bytes())
            .await?;
        // The router reads keys now and then.
        let with_key = json!({ "model": tenant.named("absent") });
        eventually(PATIENCE, async || {
            let answer = self.chat(&tenant.key(), &with_key).await?.response;
            ensure!(answer.contains("model_not_found"), "{answer}");
            self.still_works(&tenant).await
        })
        .await?;
        Ok(tenant)
    }

    async fn sign_in(&self, token: &str) -> Result<String> {
        let origin = self.console.origin();
        let entered = self
            .console
            .ask("POST", "/login", &[("origin", &origin)], &format!("token={token}"))
            .await?;
        let cookie = entered.header("set-cookie").with_context(|| format!("{entered:?}"))?;
        Ok(cookie.split(';').next().unwrap_or_default().to_owned())
    }

    /// URL of the broker with the user of a namespace.
    async fn broker_of(&self, namespace: &str) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.bed.admin.clone(), namespace);
        let data = secrets.get("asya-broker").await?.data.context("no data")?;
        let text = |key: &str| Ok::<_, anyhow::Error>(String::from_utf8(data.get(key).context("no key")?.0.clone())?);
        let (host, port) = self.rabbit.address();
        Ok(format!(
            "amqp://{}:{}@{host}:{port}/%2f",
            text("username")?,
            text("password")?
        ))
    }

    /// Creates a Service of a tenant for one of its models, and writes it into the status as a provider would.
    async fn serves(&self, tenant: &Tenant, name: &str, spec: &Value) -> Result<()> {
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": spec });
        accepted(&create(&tenant.owner, tenant, SERVICES, &service).await?)?;
        let status = json!({ "status": { "endpoint": { "service": name, "port": tenant.engine.port }, "replicas": { "ready": 1 } } });
        let models: Api<ModelDeployment> = Api::namespaced(self.bed.admin.clone(), tenant.namespace);
        models
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        Ok(())
    }

    /// A pod that a Service of the name selects, at the address of this machine.
    async fn pod(&self, tenant: &Tenant, name: &str) -> Result<()> {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": tenant.namespace, "labels": { "app": name } },
            "spec": { "automountServiceAccountToken": false, "containers": [{ "name": "model", "image": "registry.example/model:1" }] } });
        // Not before the ServiceAccount of the namespace.
        eventually(PATIENCE, async || self.bed.apply(&pod).await).await?;
        let address = self.address.to_string();
        let status = json!({ "status": { "podIP": address, "podIPs": [{ "ip": address }] } });
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.bed.admin.clone(), tenant.namespace);
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;
        Ok(())
    }

    /// Sends a chat to the router with a token or key.
    async fn chat(&self, credential: &str, body: &Value) -> Result<Attempt> {
        let answer = Begun::send(self.router, chat(credential, body)?).await?.whole().await?;
        Ok(Attempt {
            wrote: body.to_string(),
            response: format!("{} {}", answer.status, answer.text),
        })
    }

    /// Gets a path of the router with a token or key.
    async fn get(&self, credential: &str, path: &str) -> Result<Attempt> {
        let answer = Begun::send(self.router, request(Method::GET, path, credential, "")?).await?;
        let answer = answer.whole().await?;
        Ok(Attempt {
            wrote: format!("GET {path}"),
            response: format!("{} {}", answer.status, answer.text),
        })
    }

    /// Sends a request to asya-gateway as the owner of a tenant.
    async fn ask_gateway(
        &self,
        tenant: &Tenant,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: &str,
    ) -> Result<Attempt> {
        let wrote = format!("{method} {path} {headers:?} {body}");
        let mut request = request(method, path, &tenant.for_gateway, body.to_owned())?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse()?);
        }
        let answer = Begun::send(self.gateway, request).await?.whole().await?;
        Ok(Attempt {
            wrote,
            response: format!("{} {}", answer.status.as_u16(), answer.text),
        })
    }

    /// Sends a request to the console as the owner of a tenant.
    async fn ask_console(&self, tenant: &Tenant, path: &str) -> Result<Attempt> {
        let answer = self.console.ask("GET", path, &[("cookie", &tenant.cookie)], "").await?;
        Ok(Attempt {
            wrote: format!("GET {path}"),
            response: format!("{} {}", answer.code, answer.body),
        })
    }

    /// The model of a tenant answers by each of its names, its job is pending, and its messages are in their queues.
    async fn still_works(&self, tenant: &Tenant) -> Result<()> {
        for name in [
            tenant.named("served"),
            format!("{}/{}", tenant.namespace, tenant.named("model")),
        ] {
            let answer = self
                .chat(&tenant.for_router, &json!({ "model": name, "messages": [] }))
                .await?
                .response;
            let is_own = answer.contains(&format!("engine of {}", tenant.namespace));
            tenant.engine.expected.fetch_add(usize::from(is_own), Ordering::SeqCst);
            ensure!(is_own, "{name}: {answer}");
        }
        let (asked, expected) = (&tenant.engine.asked, &tenant.engine.expected);
        let (asked, expected) = (asked.load(Ordering::SeqCst), expected.load(Ordering::SeqCst));
        ensure!(
            asked == expected,
            "the engine got {asked} requests, {expected} of them from its own tenant"
        );
        let job = self
            .ask_gateway(tenant, Method::GET, &format!("/jobs/{}", tenant.job), &[], "")
            .await?
            .response;
        ensure!(job.contains("\"status\":\"pending\""), "{job}");
        Ok(())
    }

    /// A job of a tenant is answered by its own user of the broker, its dead letter is redriven, and its key and pages work.
    async fn finishes(&self, tenant: &Tenant) -> Result<()> {
        let path = format!("/queues/{}/{}/dlq/redrive", tenant.namespace, tenant.named("actor"));
        let redriven = self
            .ask_gateway(tenant, Method::POST, &path, &[], r#"{"all": true}"#)
            .await?
            .response;
        ensure!(redriven.contains("\"processed\":1"), "{redriven}");
        let own = Broker::connect(&tenant.broker).await?;
        let mut messages = own.consume(&tenant.queue("")).await?;
        let (message, _) = messages.next(PATIENCE).await?;
        let message: Value = serde_json::from_slice(&message)?;
        ensure!(
            message["id"] == *tenant.job && message["payload"]["text"] == *tenant.named("payload"),
            "{message}"
        );
        let reply = json!({ "id": tenant.job, "payload": "done" }).to_string();
        let own_name = BasicProperties::default().with_user_id(format!("asya_{}", tenant.namespace).into());
        own.send(REPLIES.0, REPLIES.1, reply.as_bytes(), own_name).await?;
        eventually(PATIENCE, async || {
            let job = self
                .ask_gateway(tenant, Method::GET, &format!("/jobs/{}", tenant.job), &[], "")
                .await?
                .response;
            ensure!(
                job.contains("\"status\":\"succeeded\"") && job.contains("\"result\":\"done\""),
                "{job}"
            );
            Ok(())
        })
        .await?;
        let with_key = self
            .chat(&tenant.key(), &json!({ "model": tenant.named("served") }))
            .await?
            .response;
        ensure!(
            with_key.contains(&format!("engine of {}", tenant.namespace)),
            "{with_key}"
        );
        let page = self
            .ask_console(
                tenant,
                &format!("/deployments/{}/{}", tenant.namespace, tenant.named("model")),
            )
            .await?;
        ensure!(
            page.response.starts_with("200 ") && page.response.contains(&tenant.named("served")),
            "{}",
            page.response
        );
        Ok(())
    }

    /// Objects and queues of a tenant, once nothing changes them any more.
    async fn state(&self, tenant: &Tenant) -> Result<BTreeMap<String, Value>> {
        let mut before = self.state_now(tenant).await?;
        for _ in 0..20 {
            tokio::time::sleep(QUIET).await;
            let now = self.state_now(tenant).await?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
        bail!("the objects of {} do not come to rest", tenant.namespace)
    }

    async fn state_now(&self, tenant: &Tenant) -> Result<BTreeMap<String, Value>> {
        let mut state = BTreeMap::new();
        for (group, version, kind) in [
            ("kubeairunway.ai", "v1alpha1", "ModelDeployment"),
            ("asya.sh", "v1alpha1", "AsyncActor"),
            ("llamastack.io", "v1alpha1", "LlamaStackDistribution"),
            ("apps", "v1", "Deployment"),
            ("apps", "v1", "StatefulSet"),
            ("keda.sh", "v1alpha1", "ScaledObject"),
            ("networking.k8s.io", "v1", "Ingress"),
            ("networking.k8s.io", "v1", "NetworkPolicy"),
            ("discovery.k8s.io", "v1", "EndpointSlice"),
            ("", "v1", "Service"),
            ("", "v1", "Secret"),
            ("", "v1", "ConfigMap"),
            ("", "v1", "ServiceAccount"),
            ("", "v1", "Pod"),
        ] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let objects: Api<DynamicObject> = Api::namespaced_with(self.bed.admin.clone(), tenant.namespace, &resource);
            for object in objects.list(&ListParams::default()).await?.items {
                let (uid, version) = (object.uid(), object.resource_version());
                let content = json!({ "uid": uid, "resourceVersion": version, "spec": object.data["spec"], "data": object.data["data"] });
                state.insert(format!("{kind} {}", object.name_any()), content);
            }
        }
        for queue in [tenant.queue(""), tenant.queue("_dlq")] {
            let ready = self.broker.ready(&queue).await?;
            state.insert(format!("queue {queue}"), json!(ready));
        }
        Ok(state)
    }
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";
/// Exchange and queue of replies to asya-gateway.
const REPLIES: (&str, &str) = ("asya_reply", "asya_reply_gateway");
const MODELS: (&str, &str) = ("kubeairunway.ai/v1alpha1", "modeldeployments");
const ACTORS: (&str, &str) = ("asya.sh/v1alpha1", "asyncactors");
const DISTRIBUTIONS: (&str, &str) = ("llamastack.io/v1alpha1", "llamastackdistributions");
const DEPLOYMENTS: (&str, &str) = ("apps/v1", "deployments");
const SERVICES: (&str, &str) = ("v1", "services");

/// RabbitMQ with a user for each namespace; and for each namespace a transport of its own.
fn transports(rabbit: &RabbitMq, folder: &std::path::Path) -> Result<Value> {
    let secrets = folder.join("secrets/broker");
    std::fs::create_dir_all(&secrets)?;
    for (key, text) in [("password", "guest"), ("key", "0123456789abcdef0123456789abcdef")] {
        std::fs::write(secrets.join(key), text)?;
    }
    let (host, port) = rabbit.address();
    let of = |key: &str| json!({ "name": "broker", "key": key });
    let config = json!({ "host": host, "port": port, "username": "guest", "managementPort": rabbit.management_port(),
        "passwordSecretRef": of("password") });
    let mut with_tenants = config.clone();
    with_tenants["tenants"] =
        json!({ "username": "guest", "passwordSecretRef": of("password"), "keySecretRef": of("key") });
    let only =
        |namespace: &str, config: &Value| json!({ "type": "rabbitmq", "namespaces": [namespace], "config": config });
    let mut all = json!({ "only-team-a": only("team-a", &config), "only-team-b": only("team-b", &config) });
    all["rabbitmq"] = json!({ "type": "rabbitmq", "namespaces": ["team-a", "team-b"], "config": with_tenants });
    Ok(json!({ "transports": all }))
}

/// A model for which no provider is selected, because it is paused, so that the test writes its status.
fn model(name: &str, served: &str) -> Value {
    json!({ "apiVersion": MODELS.0, "kind": "ModelDeployment",
        "metadata": { "name": name, "annotations": { labels::PAUSED: "true" } },
        "spec": { "model": { "id": "org/model", "servedName": served }, "engine": { "type": "vllm" },
            "resources": { "gpu": { "count": 1 } } } })
}

/// Spec of a headless Service for pods with this label, ready or not.
fn selected(app: &str) -> Value {
    json!({ "clusterIP": "None", "selector": { "app": app }, "publishNotReadyAddresses": true, "ports": [{ "port": 80 }] })
}

fn workload(name: &str) -> Value {
    json!({ "apiVersion": DEPLOYMENTS.0, "kind": "Deployment", "metadata": { "name": name },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": name } }, "template": {
            "metadata": { "labels": { "app": name } },
            "spec": { "containers": [{ "name": "model", "image": "registry.example/model:1" }] } } } })
}

fn actor(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": ACTORS.0, "kind": "AsyncActor", "metadata": { "name": name }, "spec": spec })
}

/// An actor with a workload of its own.
fn own_actor(name: &str, transport: &str) -> Value {
    let pods = json!({ "spec": { "containers": [{ "name": "asya-runtime", "image": "registry.example/own:1" }] } });
    actor(
        name,
        &json!({ "transport": transport, "workload": { "template": pods } }),
    )
}

/// An actor that is bound to a Deployment.
fn bound_actor(name: &str, target: &str) -> Value {
    actor(
        name,
        &json!({ "transport": "rabbitmq", "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": target },
        "runtime": { "image": "registry.example/adapter:1", "handler": "a.b" } }),
    )
}

/// Sends a request to the API server.
async fn ask_api(client: &Client, method: Method, path: &str, body: &Value) -> Result<Attempt> {
    let (kind, text) = match (&method, body) {
        (&Method::GET | &Method::DELETE, _) => ("application/json", String::new()),
        (&Method::PATCH, body) => ("application/merge-patch+json", body.to_string()),
        (_, body) => ("application/json", body.to_string()),
    };
    let wrote = format!("{method} {path} {text}");
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, kind);
    let response = match client.request::<Value>(request.body(text.into_bytes())?).await {
        Ok(object) => format!("accepted: {object}"),
        Err(kube::Error::Api(status)) => status.message,
        Err(error) => return Err(error.into()),
    };
    Ok(Attempt { wrote, response })
}

/// Creates an object in the namespace of a tenant, as kubectl would.
async fn create(client: &Client, place: &Tenant, (group, plural): (&str, &str), object: &Value) -> Result<Attempt> {
    let path = format!("{}?fieldValidation=Strict", place.path(group, plural));
    ask_api(client, Method::POST, &path, object).await
}

async fn delete(tenant: &Tenant, (group, plural): (&str, &str), name: &str) -> Result<()> {
    let path = format!("{}/{name}", tenant.path(group, plural));
    accepted(&ask_api(&tenant.owner, Method::DELETE, &path, &Value::Null).await?)
}

fn accepted(attempt: &Attempt) -> Result<()> {
    ensure!(
        attempt.response.starts_with("accepted"),
        "{}: {}",
        attempt.wrote,
        attempt.response
    );
    Ok(())
}

async fn uses_model(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for name in [
        other.named("served"),
        other.named("model"),
        format!("{}/{}", other.namespace, other.named("model")),
    ] {
        for credential in [&attacker.for_router, &attacker.key()] {
            attempts.push(
                world
                    .chat(credential, &json!({ "model": name, "messages": [] }))
                    .await?,
            );
            attempts.push(world.get(credential, &format!("/v1/models/{name}")).await?);
        }
    }
    Ok(attempts)
}

async fn lists_models(world: &World, attacker: &Tenant) -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for credential in [&attacker.for_router, &attacker.key()] {
        let listed = world.get(credential, "/v1/models").await?;
        ensure!(
            listed.response.contains(&attacker.named("served")),
            "{}",
            listed.response
        );
        attempts.push(listed);
    }
    Ok(attempts)
}

async fn takes_name(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let full = format!("{}/{}", other.namespace, other.named("model"));
    let names = [("thief-1", other.named("served")), ("thief-2", full)];
    for (name, served) in &names {
        let mut model = model(&attacker.named(name), served);
        model["metadata"]["annotations"][labels::STAND_IN_FOR] = json!(other.named("model"));
        accepted(&create(&attacker.member, attacker, MODELS, &model).await?)?;
        world
            .serves(attacker, &attacker.named(name), &selected(&attacker.named("model")))
            .await?;
    }
    // The router knows them.
    for (name, _) in &names {
        let body = json!({ "model": format!("{}/{}", attacker.namespace, attacker.named(name)) });
        eventually(PATIENCE, async || {
            let answer = world.chat(&attacker.for_router, &body).await?.response;
            ensure!(answer.contains("engine of"), "{answer}");
            attacker.engine.expected.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .await?;
    }
    let mut attempts = Vec::new();
    for (_, served) in &names {
        let answer = world.chat(&other.for_router, &json!({ "model": served })).await?;
        other.engine.expected.fetch_add(1, Ordering::SeqCst);
        attempts.push(answer);
    }
    for (name, _) in &names {
        delete(attacker, MODELS, &attacker.named(name)).await?;
        delete(attacker, SERVICES, &attacker.named(name)).await?;
    }
    Ok(attempts)
}

async fn leads_by_name(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let name = format!("{}.{}.svc", other.named("model"), other.namespace);
    leads(
        world,
        attacker,
        "by-name",
        &json!({ "type": "ExternalName", "externalName": name }),
    )
    .await
}

async fn leads_by_hand(world: &World, attacker: &Tenant) -> Result<Vec<Attempt>> {
    leads(world, attacker, "by-hand", &json!({ "ports": [{ "port": 80 }] })).await
}

/// A model of the attacker with this Service gets a request.
async fn leads(world: &World, attacker: &Tenant, name: &str, service: &Value) -> Result<Vec<Attempt>> {
    let name = attacker.named(name);
    accepted(&create(&attacker.member, attacker, MODELS, &model(&name, &name)).await?)?;
    world.serves(attacker, &name, service).await?;
    let sent = eventually(PATIENCE, async || {
        let sent = world.chat(&attacker.for_router, &json!({ "model": name })).await?;
        ensure!(!sent.response.contains("model_not_found"), "{}", sent.response);
        Ok(sent)
    })
    .await?;
    Ok(vec![sent])
}

async fn writes_endpoints(world: &World, attacker: &Tenant) -> Result<Vec<Attempt>> {
    let (name, address) = (attacker.named("by-hand"), world.address.to_string());
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name } },
        "endpoints": [{ "addresses": [address] }], "ports": [{ "port": 80 }] });
    let endpoints = json!({ "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": name },
        "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "port": 80 }] }] });
    Ok(vec![
        create(
            &attacker.owner,
            attacker,
            ("discovery.k8s.io/v1", "endpointslices"),
            &slice,
        )
        .await?,
        create(&attacker.owner, attacker, ("v1", "endpoints"), &endpoints).await?,
    ])
}

/// A model that never serves, whose requests wait.
async fn never(world: &World, attacker: &Tenant) -> Result<String> {
    let name = attacker.named("never");
    let _ = create(&attacker.member, attacker, MODELS, &model(&name, &name)).await?;
    eventually(PATIENCE, async || {
        let known = world.get(&attacker.for_router, &format!("/v1/models/{name}")).await?;
        ensure!(known.response.starts_with("200 "), "{}", known.response);
        Ok(())
    })
    .await?;
    Ok(name)
}

/// Sends as many requests at once, lets the other tenant work, and returns those that were refused meanwhile.
async fn at_once(world: &World, other: &Tenant, credential: &str, body: &Value, count: usize) -> Result<Vec<Attempt>> {
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (request, router) = (chat(credential, body)?, world.router);
        requests.spawn(async move { Begun::send(router, request).await?.whole().await });
    }
    // The others wait for the model.
    let first = requests.join_next().await.context("none was refused")???;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut refused = vec![first];
    while let Some(more) = requests.try_join_next() {
        refused.push(more??);
    }
    ensure!(!requests.is_empty(), "all were refused");
    world.still_works(other).await?;
    let attempts = refused.into_iter().map(|answer| Attempt {
        wrote: String::new(),
        response: answer.text,
    });
    Ok(attempts.collect())
}

async fn takes_places(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let name = never(world, attacker).await?;
    let attempts = at_once(
        world,
        other,
        &attacker.for_router,
        &json!({ "model": name }),
        PLACES + 4,
    )
    .await?;
    released(world, attacker).await?;
    Ok(attempts)
}

/// Waits until the places of requests that the attacker gave up are free.
async fn released(world: &World, attacker: &Tenant) -> Result<()> {
    eventually(PATIENCE, async || world.still_works(attacker).await).await
}

async fn takes_bodies(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let name = never(world, attacker).await?;
    let large = json!({ "model": name, "prompt": "x".repeat(BODY - 1024) });
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..PLACES - 2 {
        let (request, router) = (chat(&attacker.for_router, &large)?, world.router);
        requests.spawn(async move { Begun::send(router, request).await?.whole().await });
    }
    let refused = requests.join_next().await.context("none was refused")???;
    let own = json!({ "model": other.named("served"), "prompt": "x".repeat(BODY - 1024) });
    let answer = world.chat(&other.for_router, &own).await?.response;
    ensure!(answer.contains(&format!("engine of {}", other.namespace)), "{answer}");
    other.engine.expected.fetch_add(1, Ordering::SeqCst);
    requests.shutdown().await;
    released(world, attacker).await?;
    Ok(vec![Attempt {
        wrote: String::new(),
        response: refused.text,
    }])
}

async fn takes_waits(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let follow = async |tenant: &Tenant| {
        let mut request = request(Method::GET, &format!("/jobs/{}", tenant.job), &tenant.for_gateway, "")?;
        request
            .headers_mut()
            .insert(header::ACCEPT, "text/event-stream".parse()?);
        Begun::send(world.gateway, request).await
    };
    let (mut followed, mut attempts) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let begun = follow(attacker).await?;
        if begun.response.status() == 200 {
            followed.push(begun);
        } else {
            attempts.push(Attempt {
                wrote: attacker.job.clone(),
                response: begun.whole().await?.text,
            });
        }
    }
    ensure!(follow(other).await?.response.status() == 200);
    Ok(attempts)
}

async fn submits(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let (own, actor) = (attacker.named("actor"), other.named("actor"));
    let ask = async |path: String, headers: &[(&'static str, &str)]| {
        world.ask_gateway(attacker, Method::POST, &path, headers, "{}").await
    };
    Ok(vec![
        ask(format!("/v1/{}/{actor}", other.namespace), &[]).await?,
        ask(format!("/v1/{}/{actor}/chat/completions", other.namespace), &[]).await?,
        ask(format!("/v1/{}/{own}", other.namespace), &[]).await?,
    ])
}

async fn reads_job(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let ask = async |method, path: String| world.ask_gateway(attacker, method, &path, &[], "").await;
    Ok(vec![
        ask(Method::GET, format!("/jobs/{}", other.job)).await?,
        ask(Method::GET, format!("/jobs/{}/result", other.job)).await?,
        ask(Method::GET, format!("/jobs/{}-1", other.job)).await?,
        ask(Method::DELETE, format!("/jobs/{}", other.job)).await?,
    ])
}

async fn uses_idempotency_key(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let path = format!("/v1/{}/{}", attacker.namespace, attacker.named("actor"));
    let key = other.named("order");
    let payload = json!({ "text": other.named("payload") }).to_string();
    Ok(vec![
        world
            .ask_gateway(attacker, Method::POST, &path, &[("idempotency-key", &key)], &payload)
            .await?,
    ])
}

async fn uses_dead_letters(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let queue = format!("/queues/{}/{}", other.namespace, other.named("actor"));
    let mut attempts = Vec::new();
    for path in [
        queue.clone(),
        format!("{queue}/dlq"),
        format!("{queue}/dlq?id={}", other.named("letter")),
    ] {
        attempts.push(world.ask_gateway(attacker, Method::GET, &path, &[], "").await?);
    }
    for verb in ["redrive", "drop"] {
        let path = format!("{queue}/dlq/{verb}");
        attempts.push(
            world
                .ask_gateway(attacker, Method::POST, &path, &[], r#"{"all": true}"#)
                .await?,
        );
    }
    Ok(attempts)
}

fn of_broker<T>(wrote: &str, done: Result<T>) -> Attempt {
    let response = done.map_or_else(
        |error| format!("{error:#}").replace("ACCESS-REFUSED", "ACCESS_REFUSED"),
        |_| "accepted".to_owned(),
    );
    Attempt {
        wrote: wrote.to_owned(),
        response,
    }
}

async fn uses_queues(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    // A refusal ends the channel.
    let connect = || Broker::connect(&attacker.broker);
    let mut attempts = Vec::new();
    let own_exchange = format!("asya-{}_actors", attacker.namespace);
    for queue in [other.queue(""), other.queue("_dlq"), REPLIES.1.to_owned()] {
        attempts.push(of_broker(&queue, connect().await?.consume(&queue).await));
        attempts.push(of_broker(&queue, connect().await?.purge(&queue).await));
        attempts.push(of_broker(&queue, connect().await?.delete(&queue).await));
        attempts.push(of_broker(
            &queue,
            connect().await?.bind(&queue, &own_exchange, "x").await,
        ));
    }
    let exchange = format!("asya-{}_actors", other.namespace);
    for exchange in ["", "asya", "amq.topic", &exchange] {
        let queue = other.queue("");
        attempts.push(of_broker(
            &queue,
            connect().await?.publish_to(exchange, &queue, b"{}").await,
        ));
    }
    attempts.push(of_broker(&exchange, connect().await?.delete_exchange(&exchange).await));
    // An actor of its own that is named like the other's has a queue of its own.
    ensure!(
        world
            .broker
            .ready(&format!("asya-{}_{}", attacker.namespace, other.named("actor")))
            .await
            .is_err()
    );
    Ok(attempts)
}

async fn publishes_by_own_exchange(_: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let own_exchange = format!("asya-{}_actors", attacker.namespace);
    let mut attempts = Vec::new();
    for queue in [other.queue(""), other.queue("_dlq")] {
        let sent = Broker::connect(&attacker.broker)
            .await?
            .publish_to(&own_exchange, &queue, b"{}")
            .await;
        attempts.push(of_broker(&queue, sent));
    }
    Ok(attempts)
}

async fn reads_secret(attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let secrets = other.path("v1", "secrets");
    let mut attempts = Vec::new();
    for client in [&attacker.owner, &attacker.member] {
        for path in [format!("{secrets}/asya-broker"), secrets.clone()] {
            attempts.push(ask_api(client, Method::GET, &path, &Value::Null).await?);
        }
    }
    // The owner of a namespace reads its own; a member does not.
    let own = format!("{}/asya-broker", attacker.path("v1", "secrets"));
    attempts.push(ask_api(&attacker.member, Method::GET, &own, &Value::Null).await?);
    Ok(attempts)
}

async fn forges_sender(_: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let reply = json!({ "id": other.job, "payload": "forged" }).to_string();
    let mut attempts = Vec::new();
    for name in [format!("asya_{}", other.namespace), "guest".to_owned()] {
        let properties = BasicProperties::default().with_user_id(name.into());
        let sent = Broker::connect(&attacker.broker)
            .await?
            .send(REPLIES.0, REPLIES.1, reply.as_bytes(), properties)
            .await;
        attempts.push(of_broker(&reply, sent));
    }
    Ok(attempts)
}

async fn forges_reply(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let reply = json!({ "id": other.job, "payload": "forged" }).to_string();
    let set_aside = format!("{}_dlq", REPLIES.1);
    let before = world.broker.ready(&set_aside).await?;
    let own_name = BasicProperties::default().with_user_id(format!("asya_{}", attacker.namespace).into());
    for properties in [BasicProperties::default(), own_name] {
        Broker::connect(&attacker.broker)
            .await?
            .send(REPLIES.0, REPLIES.1, reply.as_bytes(), properties)
            .await?;
    }
    eventually(PATIENCE, async || {
        ensure!(
            world.broker.ready(&set_aside).await? == before + 2,
            "they are not set aside"
        );
        Ok(())
    })
    .await?;
    let job = world
        .ask_gateway(other, Method::GET, &format!("/jobs/{}", other.job), &[], "")
        .await?;
    // The other one's own response has its own names.
    let job: Value = serde_json::from_str(job.response.split_once(' ').context("no body")?.1)?;
    let response = json!({ "status": job["status"] }).to_string();
    Ok(vec![Attempt { wrote: reply, response }])
}

async fn uses_transport(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let (name, transport) = (attacker.named("guest"), format!("only-{}", other.namespace));
    accepted(&create(&attacker.owner, attacker, ACTORS, &own_actor(&name, &transport)).await?)?;
    let actors: Api<AsyncActor> = Api::namespaced(world.bed.admin.clone(), attacker.namespace);
    let said = eventually(PATIENCE, async || {
        let status = actors.get(&name).await?.status.unwrap_or_default();
        let said = serde_json::to_string(&status)?;
        ensure!(said.contains("TransportNotAllowed"), "{said}");
        Ok(said)
    })
    .await?;
    ensure!(
        world
            .broker
            .ready(&format!("asya-{}_{name}", attacker.namespace))
            .await
            .is_err(),
        "it has a queue"
    );
    delete(attacker, ACTORS, &name).await?;
    Ok(vec![Attempt {
        wrote: transport,
        response: said,
    }])
}

async fn changes_transports(attacker: &Tenant) -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for object in ["configmaps/asya-transports", "secrets/asya-transports"] {
        let path = format!("/api/v1/namespaces/{}/{object}", manifests::NAMESPACE);
        attempts.push(ask_api(&attacker.owner, Method::GET, &path, &Value::Null).await?);
        attempts.push(ask_api(&attacker.owner, Method::PATCH, &path, &json!({ "data": {} })).await?);
    }
    Ok(attempts)
}

async fn takes_identity(attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    for (name, value) in [
        ("ASYA_NAMESPACE", other.namespace.to_owned()),
        ("ASYA_ACTOR_NAME", other.named("actor")),
        ("ASYA_RABBITMQ_URL", "amqp://elsewhere".to_owned()),
    ] {
        let env = json!([{ "name": name, "value": value }]);
        let mut own = own_actor(&attacker.named("mask"), "rabbitmq");
        own["spec"]["sidecar"] = json!({ "env": env });
        attempts.push(create(&attacker.owner, attacker, ACTORS, &own).await?);
        let mut bound = bound_actor(&attacker.named("mask"), &attacker.named("tool"));
        bound["spec"]["runtime"]["env"] = env;
        attempts.push(create(&attacker.owner, attacker, ACTORS, &bound).await?);
    }
    Ok(attempts)
}

async fn binds_by_namespace(attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let mut object = bound_actor(&attacker.named("leash"), &other.named("tool"));
    object["spec"]["workloadRef"]["namespace"] = json!(other.namespace);
    Ok(vec![create(&attacker.owner, attacker, ACTORS, &object).await?])
}

async fn binds_without_permission(attacker: &Tenant) -> Result<Vec<Attempt>> {
    let object = bound_actor(&attacker.named("leash"), &attacker.named("tool"));
    Ok(vec![create(&attacker.member, attacker, ACTORS, &object).await?])
}

async fn writes_elsewhere(attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    let distribution = json!({ "apiVersion": DISTRIBUTIONS.0, "kind": "LlamaStackDistribution", "metadata": { "name": "stack" },
        "spec": { "server": { "distribution": { "image": "registry.example/distribution:1" } } } });
    for client in [&attacker.owner, &attacker.member] {
        for (kind, object) in [
            (MODELS, model(&attacker.named("spy"), "spy")),
            (ACTORS, bound_actor(&attacker.named("spy"), &other.named("tool"))),
            (DISTRIBUTIONS, distribution.clone()),
            (DEPLOYMENTS, workload(&attacker.named("spy"))),
        ] {
            attempts.push(create(client, other, kind, &object).await?);
        }
        for (kind, name) in [(MODELS, "model"), (ACTORS, "actor"), (DEPLOYMENTS, "tool")] {
            let path = format!("{}/{}", other.path(kind.0, kind.1), other.named(name));
            attempts.push(ask_api(client, Method::GET, &path, &Value::Null).await?);
            attempts.push(
                ask_api(
                    client,
                    Method::PATCH,
                    &path,
                    &json!({ "metadata": { "labels": { "of": "others" } } }),
                )
                .await?,
            );
            attempts.push(ask_api(client, Method::DELETE, &path, &Value::Null).await?);
        }
        let scale = format!("{}/{}/scale", other.path(MODELS.0, MODELS.1), other.named("model"));
        attempts.push(ask_api(client, Method::PATCH, &scale, &json!({ "spec": { "replicas": 0 } })).await?);
    }
    Ok(attempts)
}

async fn goes_beyond(attacker: &Tenant) -> Result<Vec<Attempt>> {
    let mut attempts = Vec::new();
    let of_model = |spec: &Value| {
        let mut object = model("beyond", "beyond");
        json_patch::merge(&mut object["spec"], spec);
        object
    };
    let stack = |spec: Value| {
        let mut object = json!({ "apiVersion": DISTRIBUTIONS.0, "kind": "LlamaStackDistribution", "metadata": { "name": "beyond" },
            "spec": { "server": { "distribution": { "image": "registry.example/distribution:1" } } } });
        json_patch::merge(&mut object["spec"], &spec);
        object
    };
    let of_server = |settings: Value| stack(json!({ "server": { "podOverrides": settings } }));
    for (kind, object) in [
        (
            MODELS,
            of_model(&json!({ "provider": { "overrides": { "serviceType": "LoadBalancer" } } })),
        ),
        (MODELS, of_model(&json!({ "serviceAccountName": "owner" }))),
        (
            MODELS,
            of_model(&json!({ "podTemplate": { "spec": { "priorityClassName": "high" } } })),
        ),
        (ACTORS, own_actor("beyond", "rabbitmq")),
        (DISTRIBUTIONS, stack(json!({ "network": { "exposeRoute": true } }))),
        (
            DISTRIBUTIONS,
            stack(json!({ "network": { "allowedFrom": { "namespaces": ["*"] } } })),
        ),
        (DISTRIBUTIONS, of_server(json!({ "serviceAccountName": "owner" }))),
        (
            DISTRIBUTIONS,
            of_server(json!({ "volumes": [{ "name": "node", "hostPath": { "path": "/" } }] })),
        ),
    ] {
        attempts.push(create(&attacker.member, attacker, kind, &object).await?);
    }
    Ok(attempts)
}

async fn overrides(world: &World, attacker: &Tenant) -> Result<Vec<Attempt>> {
    let name = attacker.named("over");
    let mut object = runway_product_testbed::vllm(&name, "direct");
    object["metadata"] = json!({ "name": name });
    object["spec"]["scaling"]["replicas"] = json!(0);
    object["spec"]["provider"]["overrides"] = json!({ "hostNetwork": true });
    accepted(&create(&attacker.member, attacker, MODELS, &object).await?)?;
    let models: Api<ModelDeployment> = Api::namespaced(world.bed.admin.clone(), attacker.namespace);
    let said = eventually(PATIENCE, async || {
        let status = models.get(&name).await?.status.unwrap_or_default();
        let said = serde_json::to_string(&status)?;
        ensure!(said.contains("hostNetwork"), "{said}");
        Ok(said)
    })
    .await?;
    let deployments: Api<DynamicObject> = Api::namespaced_with(
        world.bed.admin.clone(),
        attacker.namespace,
        &ApiResource::erase::<k8s_openapi::api::apps::v1::Deployment>(&()),
    );
    let made = deployments.get_opt(&name).await?.map(|made| made.data.to_string());
    ensure!(
        !made.as_ref().is_some_and(|made| made.contains("hostNetwork")),
        "{made:?}"
    );
    delete(attacker, MODELS, &name).await?;
    Ok(vec![Attempt {
        wrote: object.to_string(),
        response: said,
    }])
}

async fn takes_ownership(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let (admin, name) = (&world.bed.admin, other.named("idle"));
    let owner = Api::<ModelDeployment>::namespaced(admin.clone(), other.namespace)
        .get(&name)
        .await?;
    let uid = owner.uid().context("no uid")?;
    let mut fake = workload(&name);
    fake["metadata"]["labels"] = json!({ labels::DEPLOYMENT: name, labels::MANAGED_BY: "direct-provider" });
    fake["metadata"]["ownerReferences"] = json!([{ "apiVersion": MODELS.0, "kind": "ModelDeployment", "name": name, "uid": uid,
        "controller": true }]);
    accepted(&create(&attacker.owner, attacker, DEPLOYMENTS, &fake).await?)?;
    // A model of the name has objects of its own, too, and deletes none but these.
    let mut same = runway_product_testbed::vllm(&name, "direct");
    same["metadata"] = json!({ "name": name });
    same["spec"]["scaling"]["replicas"] = json!(0);
    accepted(&create(&attacker.owner, attacker, MODELS, &same).await?)?;
    let models: Api<ModelDeployment> = Api::namespaced(admin.clone(), attacker.namespace);
    eventually(PATIENCE, async || {
        let status = models.get(&name).await?.status.unwrap_or_default();
        ensure!(
            status.provider.is_some_and(|provider| provider.name.is_some()),
            "it has no provider"
        );
        Ok(())
    })
    .await?;
    delete(attacker, MODELS, &name).await?;
    eventually(PATIENCE, async || {
        ensure!(models.get_opt(&name).await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> = Api::namespaced(admin.clone(), other.namespace);
    let listed = deployments.list(&ListParams::default()).await?;
    let of_model = |child: &&_| ResourceExt::owner_references(*child).iter().any(|of| of.uid == uid);
    let children = listed.items.iter().filter(of_model).count();
    Ok(vec![Attempt {
        wrote: name,
        response: format!("it is the owner of {children} in {}", other.namespace),
    }])
}

async fn uses_console(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let (space, model, actor) = (other.namespace, other.named("model"), other.named("actor"));
    let mut attempts = Vec::new();
    for path in [
        format!("/deployments/{space}/{model}"),
        format!("/deployments/{space}/{model}/yaml"),
    ] {
        attempts.push(world.ask_console(attacker, &path).await?);
    }
    let user = world.console.with_cookie(&attacker.cookie).await?;
    for path in [
        format!("/deployments/{space}/{model}/pause"),
        format!("/actors/{space}/{actor}/pause"),
    ] {
        let answer = user.post(&path, &[]).await?;
        attempts.push(Attempt {
            wrote: path,
            response: format!("{} {}", answer.code, answer.body),
        });
    }
    Ok(attempts)
}

async fn reads_actor_in_console(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let path = format!("/actors/{}/{}", other.namespace, other.named("actor"));
    Ok(vec![world.ask_console(attacker, &path).await?])
}

async fn lists_in_console(world: &World, attacker: &Tenant) -> Result<Vec<Attempt>> {
    let asked = join_all(["/", "/deployments", "/actors"].map(|path| world.ask_console(attacker, path)));
    asked.await.into_iter().collect()
}

async fn leaves_namespace(world: &World, attacker: &Tenant, other: &Tenant) -> Result<Vec<Attempt>> {
    let (own, space, model) = (attacker.namespace, other.namespace, other.named("model"));
    let mut attempts = Vec::new();
    for path in [
        format!("/deployments/{own}/..%2F..%2F{space}%2Fmodeldeployments%2F{model}"),
        format!("/deployments/{own}%2F..%2F{space}/{model}"),
        format!("/deployments/{own}/{model}%3Fnamespace={space}"),
    ] {
        attempts.push(world.ask_console(attacker, &path).await?);
    }
    Ok(attempts)
}
