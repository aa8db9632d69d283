//! The real vLLM on CPUs: its own parser takes every argument that a provider writes for it, and it serves with those of the
//! direct provider. Only `cargo xtask test --lane vllm` runs these tests: they take 5 GB of disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use runway_api::ModelDeployment;
use runway_api::model_deployment::Metric;
use runway_engines::{ENGINES, Reading};
use runway_provider::{Installed, Provider, Request};
use runway_provider_direct::Direct;
use runway_provider_dynamo::Dynamo;
use runway_provider_kaito::Kaito;
use runway_provider_kuberay::KubeRay;
use runway_testbed::engine::{Endpoint, SENTENCE, chat_request, exports};
use runway_testbed::vllm::{Answer, Question, Vllm};
use serde_json::{Map, Value, json};

/// Golden cases with arguments that vLLM refuses on purpose, and a part of what it says.
const REFUSED: [(&str, &str); 2] = [
    // YAML could take it for something else.
    ("kaito/preset-flags", "ambiguous option: --no"),
    // No release has the one, and newer releases have lost the other.
    ("kuberay/everything", "Unknown engine argument: of_tomorrow, swap_space"),
];

/// Assumed path of a model if only the image knows it.
const SOMEWHERE: &str = "/model-of-the-image";

const NAME: &str = "tiny";

#[test]
#[ignore = "run by cargo xtask test --lane vllm"]
fn vllm_takes_the_arguments_of_every_golden_case() -> Result<()> {
    let Some(vllm) = Vllm::prepare("the arguments of golden cases, judged by vLLM")? else {
        return Ok(());
    };
    let mut written = Vec::new();
    for provider in providers() {
        for (case, deployment) in golden_cases(provider.name())? {
            let questions = written_by(&*provider, &deployment).unwrap_or_default();
            written.extend(questions.into_iter().map(|question| (case.clone(), question)));
        }
    }
    ensure!(written.len() > 50, "{} are few", written.len());
    let (cases, questions): (Vec<_>, Vec<_>) = written.into_iter().unzip();
    let answers = vllm.judge(&questions)?;
    let refused: Vec<_> = cases
        .iter()
        .zip(&answers)
        .filter_map(|(case, answer)| Some((case.as_str(), answer.refused.as_deref()?)))
        .collect();
    let is_expected =
        |((case, why), (expected, part)): (&(&str, &str), &(&str, &str))| case == expected && why.contains(part);
    let as_expected = refused.len() == REFUSED.len() && refused.iter().zip(&REFUSED).all(is_expected);
    ensure!(as_expected, "vLLM refuses {refused:#?}");
    Ok(())
}

/// The fields of a ModelDeployment arrive in vLLM, by vLLM's own names.
#[test]
#[ignore = "run by cargo xtask test --lane vllm"]
fn every_field_reaches_vllm_through_every_provider() -> Result<()> {
    let Some(vllm) = Vllm::prepare("the fields of a ModelDeployment, judged by vLLM")? else {
        return Ok(());
    };
    let engine = json!({"max_model_len": 16384, "trust_remote_code": true, "gpu_memory_utilization": 0.8});
    let named = json!({"model": "Org/Model", "served_model_name": ["friendly"]});
    let parallel = json!({"tensor_parallel_size": 4});
    let listening = |port: u16| json!({"host": "0.0.0.0", "port": port});
    let handed_over = json!({"kv_transfer_config": {}});
    let role = |role: &str| json!({"disaggregation_mode": role});
    let (kaito, dynamo, kuberay, direct) = (
        Kaito::default(),
        Dynamo::default(),
        KubeRay::default(),
        Direct::default(),
    );
    let cases: Vec<(&dyn Provider, Value, Vec<Vec<Value>>)> = vec![
        (
            &direct,
            aggregated(),
            vec![vec![named.clone(), parallel.clone(), listening(8000)]],
        ),
        (
            &kaito,
            of_image(),
            vec![vec![named.clone(), parallel.clone(), json!({"port": 5000})]],
        ),
        // A preset has the name that KAITO gives it, and as many GPUs as KAITO thinks.
        (&kaito, aggregated(), vec![vec![]]),
        (&dynamo, aggregated(), vec![vec![named.clone(), parallel.clone()]]),
        (
            &dynamo,
            disaggregated(),
            vec![
                vec![
                    named.clone(),
                    json!({"tensor_parallel_size": 2}),
                    handed_over.clone(),
                    role("prefill"),
                ],
                vec![named.clone(), parallel.clone(), handed_over.clone(), role("decode")],
            ],
        ),
        // Ray Serve has the model and its name from elsewhere.
        (&kuberay, aggregated(), vec![vec![parallel.clone()]]),
        (
            &kuberay,
            disaggregated(),
            // `decode_config` comes before `prefill_config`.
            vec![
                vec![parallel.clone(), handed_over.clone()],
                vec![json!({"tensor_parallel_size": 2}), handed_over.clone()],
            ],
        ),
    ];
    let (mut questions, mut expected) = (Vec::new(), Vec::new());
    for (provider, deployment, servers) in cases {
        let written = written_by(provider, &deployment).with_context(|| provider.name())?;
        ensure!(written.len() == servers.len(), "{}: {written:?}", provider.name());
        questions.extend(written);
        expected.extend(servers.into_iter().map(|values| (provider.name(), values)));
    }
    let mut wrong = Vec::new();
    for ((provider, values), answer) in expected.iter().zip(vllm.judge(&questions)?) {
        let taken = taken(answer).with_context(|| (*provider).to_owned())?;
        for (name, value) in values.iter().chain([&engine]).filter_map(Value::as_object).flatten() {
            if taken.get(name) != Some(value) {
                wrong.push(format!("{provider}: {name} is {:?}, not {value}", taken.get(name)));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
#[ignore = "run by cargo xtask test --lane vllm"]
fn vllm_refuses_wrong_arguments_in_every_form() -> Result<()> {
    let Some(vllm) = Vllm::prepare("wrong arguments, judged by vLLM")? else {
        return Ok(());
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let serve = |args: &[&str]| Question::Serve([words(&["Org/Model"]), words(args)].concat());
    let dynamo = |args: &[&str]| Question::Dynamo([words(&["--model", "Org/Model"]), words(args)].concat());
    let kaito = |text: &str| Question::Kaito(format!("vllm:\n  {text}\n"));
    let ray = |values: Value| Question::Ray(values.as_object().cloned().unwrap_or_default());
    let cases = [
        (
            serve(&["--max-model-length", "8192"]),
            "unrecognized arguments: --max-model-length",
        ),
        (serve(&["--max-model-len", "many"]), "--max-model-len"),
        (serve(&["--trust-remote-code", "true"]), "unrecognized arguments: true"),
        (
            serve(&[
                "--kv-transfer-config",
                "{\"kv_role\": \"kv_nobody\", \"kv_connector\": \"NixlConnector\"}",
            ]),
            "kv_role",
        ),
        (
            serve(&["--disaggregation-mode", "prefill"]),
            "unrecognized arguments: --disaggregation-mode",
        ),
        (
            dynamo(&["--max-model-length", "8192"]),
            "unrecognized arguments: --max-model-length",
        ),
        (dynamo(&["--disaggregation-mode", "prefil"]), "--disaggregation-mode"),
        (dynamo(&["--host", "0.0.0.0"]), "unrecognized arguments: --host"),
        (
            kaito("max-model-length: 8192"),
            "unrecognized arguments: --max-model-length",
        ),
        (kaito("enforce-eager: true"), "unrecognized arguments: True"),
        (
            ray(json!({"max-model-len": 8192})),
            "Unknown engine argument: max-model-len",
        ),
        (
            ray(json!({"max_model_length": 8192})),
            "Unknown engine argument: max_model_length",
        ),
    ];
    let (wrong, parts): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    for ((question, part), answer) in wrong.iter().zip(parts).zip(vllm.judge(&wrong)?) {
        let refused = answer.refused.with_context(|| format!("vLLM takes {question:?}"))?;
        ensure!(refused.contains(part), "{question:?}: {refused}");
    }
    Ok(())
}

/// Ray Serve hands values on as they are, so the provider has to find their types. vLLM's command line does the same.
#[test]
#[ignore = "run by cargo xtask test --lane vllm"]
fn ray_gets_values_of_the_types_that_vllms_command_line_makes_of_them() -> Result<()> {
    let Some(vllm) = Vllm::prepare("the types of values for Ray Serve, judged by vLLM")? else {
        return Ok(());
    };
    let (mut flags, mut questions) = (Vec::new(), Vec::new());
    for (flag, text) in vllm.examples()? {
        let mut deployment = aggregated();
        deployment["spec"]["engine"] = json!({"type": "vllm", "args": {&flag: &text}});
        // Refused are arguments that are not for the user to give.
        let Ok(written) = written_by(&KubeRay::default(), &deployment) else {
            continue;
        };
        let words = ["Org/Model".to_owned(), format!("--{flag}"), text.clone()];
        questions.push(Question::Serve(
            words.into_iter().filter(|word| !word.is_empty()).collect(),
        ));
        questions.extend(written);
        flags.push((flag, text));
    }
    ensure!(
        questions.len() == 2 * flags.len() && flags.len() > 150,
        "{} flags",
        flags.len()
    );
    let (mut compared, mut wrong) = (0, Vec::new());
    for ((flag, text), answers) in flags.iter().zip(vllm.judge(&questions)?.chunks(2)) {
        let [on_command_line, by_ray] = answers else { continue };
        // What the example is not good for.
        let Some(expected) = &on_command_line.taken else {
            continue;
        };
        compared += 1;
        let name = flag.replace('-', "_");
        let found = by_ray.taken.as_ref().and_then(|taken| taken.get(&name));
        if !found.is_some_and(|found| is_same(found, &expected[&name])) {
            wrong.push(format!(
                "{flag} '{text}' should be {}, and is {found:?} {:?}",
                expected[&name], by_ray.refused
            ));
        }
    }
    ensure!(compared > 150, "only {compared} are compared");
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by cargo xtask test --lane vllm"]
async fn vllm_serves_with_the_arguments_of_the_direct_provider() -> Result<()> {
    let prepared = tokio::task::spawn_blocking(|| Vllm::prepare("a model served by vLLM")).await?;
    let Some(vllm) = prepared? else {
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    vllm.write_model(folder.path())?;
    let port = runway_testbed::free_port()?;
    let deployment = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": {"name": "md", "namespace": "default"},
        "spec": {
            "model": {"source": "custom", "servedName": NAME},
            "engine": {
                "type": "vllm", "contextLength": 2048, "trustRemoteCode": true,
                "args": {"model": folder.path(), "port": port.to_string()},
            },
            "resources": {"gpu": {"count": 1}},
            "image": "vllm:1",
        },
    });
    let written = written_by(&Direct::default(), &deployment)?;
    let [Question::Serve(args)] = written.as_slice() else {
        anyhow::bail!("{written:?}")
    };
    let server = vllm.serve(args, port).await?;
    let endpoint = Endpoint::machine(server.client()?);
    answers_as_it_should(&endpoint).await.with_context(|| {
        let log = fs::read_to_string(server.log()).unwrap_or_default();
        format!("its log:\n{log}")
    })
}

async fn answers_as_it_should(engine: &Endpoint) -> Result<()> {
    let model = engine.lists_only(NAME).await?;
    ensure!(model["max_model_len"] == 2048, "{model}");
    engine
        .says_the_sentence(NAME, &["What is 2 + 2?", "Hello from a", "何か言って 🙂"])
        .await?;
    let contents = engine.streamed(&chat_request(NAME, "Hello")).await?;
    // It sends what is there, so that a chunk may have several pieces.
    ensure!(contents.len() > 1 && contents.concat() == SENTENCE, "{contents:?}");

    let metrics = engine.metrics().await?;
    let is_counted = |line: &str| {
        line.starts_with("vllm:request_success_total{")
            && line.contains("finished_reason=\"stop\"")
            && line.ends_with(" 4.0")
    };
    ensure!(metrics.lines().any(is_counted), "{metrics}");
    let reading = Reading::of(&metrics).with_context(|| format!("no metrics of an engine in\n{metrics}"))?;
    let values = [reading.running, reading.waiting, reading.tokens, reading.kv_cache];
    ensure!(
        reading.engine == "vLLM" && values.iter().all(Option::is_some),
        "{reading:?}"
    );
    let first_token = ENGINES.iter().filter_map(|engine| engine.metrics.first_token);
    let buckets = first_token
        .filter(|name| name.starts_with("vllm:"))
        .map(|name| format!("{name}_bucket"));
    exports(&metrics, buckets.collect::<Vec<_>>().iter().map(String::as_str))?;
    let capabilities = Direct::default().registration().capabilities;
    let for_autoscaling = Metric::ALL
        .iter()
        .filter_map(|metric| capabilities.pod_metric("vllm", *metric));
    exports(&metrics, for_autoscaling)
}

fn providers() -> Vec<Arc<dyn Provider>> {
    vec![
        Arc::new(Direct::default()),
        Arc::new(Kaito::default()),
        Arc::new(Dynamo::default()),
        Arc::new(KubeRay::default()),
    ]
}

/// The ModelDeployments for vLLM in the golden cases of a provider, by `PROVIDER/CASE`.
fn golden_cases(provider: &str) -> Result<Vec<(String, Value)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../provider-{provider}/tests/cases"));
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut folders: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    // The others have that of their base.
    folders.retain(|folder| folder.join("input.yaml").is_file());
    folders.sort();
    let mut cases = Vec::new();
    for folder in folders {
        let deployment: Value = serde_saphyr::from_str(&fs::read_to_string(folder.join("input.yaml"))?)?;
        if deployment["spec"]["engine"]["type"] == "vllm" {
            let case = folder.file_name().context("a case has a name")?.display().to_string();
            cases.push((format!("{provider}/{case}"), deployment));
        }
    }
    Ok(cases)
}

fn aggregated() -> Value {
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": {"name": "md", "namespace": "default"},
        "spec": {
            "model": {"id": "Org/Model", "servedName": "friendly"},
            "engine": {
                "type": "vllm", "contextLength": 16384, "trustRemoteCode": true,
                "args": {"gpu-memory-utilization": "0.8"},
            },
            "resources": {"gpu": {"count": 4}},
        },
    })
}

fn of_image() -> Value {
    let mut deployment = aggregated();
    deployment["spec"]["image"] = json!("vllm:1");
    deployment
}

fn disaggregated() -> Value {
    let mut deployment = aggregated();
    deployment["spec"]["resources"] = Value::Null;
    deployment["spec"]["serving"] = json!({"mode": "disaggregated"});
    deployment["spec"]["scaling"] = json!({
        "prefill": {"replicas": 1, "gpu": {"count": 2}},
        "decode": {"replicas": 1, "gpu": {"count": 4}},
    });
    deployment
}

/// Arguments that a provider writes for vLLM, as in production.
fn written_by(provider: &dyn Provider, deployment: &Value) -> Result<Vec<Question>> {
    let deployment: ModelDeployment = serde_json::from_value(deployment.clone())?;
    let request = Request::try_from(&deployment)?;
    let translation = provider.translate(&request, &Installed::newest(&provider.upstreams()))?;
    let mut found = Vec::new();
    for object in &translation.objects {
        find(provider, &object.body, &mut found)?;
    }
    Ok(found)
}

fn find(provider: &dyn Provider, value: &Value, found: &mut Vec<Question>) -> Result<()> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| find(provider, item, found)),
        Value::Object(fields) => {
            found.extend(of_container(provider, fields));
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("engine_kwargs", Value::Object(values)) => found.push(Question::Ray(values.clone())),
                    ("inference_config.yaml", Value::String(text)) => found.push(Question::Kaito(text.clone())),
                    ("serveConfigV2", Value::String(text)) => find(provider, &serde_saphyr::from_str(text)?, found)?,
                    _ => find(provider, value, found)?,
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The arguments of a container with vLLM. Those for an image's own command have no model.
fn of_container(provider: &dyn Provider, container: &Map<String, Value>) -> Option<Question> {
    let texts = |field: &str| -> Option<Vec<String>> {
        let list = container.get(field)?.as_array()?;
        list.iter().map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let (command, args) = (texts("command").unwrap_or_default(), texts("args")?);
    let model = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    match (
        command.iter().map(String::as_str).collect::<Vec<_>>().as_slice(),
        provider.name(),
    ) {
        (["vllm", "serve"], _) => Some(Question::Serve(args)),
        (["python3", "-m", "dynamo.vllm"], _) => Some(Question::Dynamo(args)),
        ([], _) => Some(Question::Serve([model(&[SOMEWHERE]), args].concat())),
        _ => None,
    }
}

fn taken(answer: Answer) -> Result<Map<String, Value>> {
    answer
        .taken
        .with_context(|| format!("vLLM refuses it: {}", answer.refused.unwrap_or_default()))
}

/// Numbers are compared as numbers: 4 and 4.0 are the same to vLLM.
fn is_same(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().is_some_and(|number| other.as_f64() == Some(number))
}
