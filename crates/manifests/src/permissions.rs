//! Admission policies that require permissions of the user for fields that go beyond the purpose of a kind (Kubernetes 1.30 or
//! newer).
//!
//! The permission to create an object of our kinds grants its purpose, such as a model that is served inside the cluster. A
//! controller could do more than that on behalf of its user, such as create an Ingress. For such a field, the API server requires
//! that the *user* has the permission to do the same directly. A field that an update does not change requires no permission.

use kube::core::DynamicObject;
use runway_api::labels;
use serde_json::{Value, json};

use super::policy::guard;

/// A kind with the fields that require a permission.
pub struct Guarded {
    /// Kind, such as `ModelDeployment`.
    pub kind: &'static str,
    group: &'static str,
    plural: &'static str,
    /// Component whose controller acts on behalf of the user.
    component: &'static str,
    /// Fields that require a permission.
    pub fields: &'static [Field],
}

/// A field that requires a permission.
pub struct Field {
    /// Path below `spec`.
    path: &'static str,
    /// Further paths below `spec` that have an effect on the same object: a change of them requires the permission, too.
    also: &'static [&'static str],
    /// CEL condition on the new value, `NEW`, and the old value, `OLD`, which are optional.
    when: &'static str,
    /// Effect that requires the permission, such as "a Service that is reachable from outside the cluster".
    pub effect: &'static str,
    /// Required permission.
    pub permission: Permission,
    /// Alternative for a user without the permission, such as "remove it".
    instead: &'static str,
}

/// A permission of Kubernetes.
pub struct Permission {
    verb: &'static str,
    plural: &'static str,
    group: &'static str,
    /// Whether it is required in the namespace of the object. Otherwise it is required in the whole cluster.
    is_namespaced: bool,
}

const fn create(plural: &'static str, group: &'static str) -> Permission {
    Permission {
        verb: "create",
        plural,
        group,
        is_namespaced: true,
    }
}

/// Permission of all users who can choose the settings of a pod.
const CREATE_PODS: Permission = create("pods", "");

/// A ServiceAccount other than the default one.
const OTHER_ACCOUNT: &str = "!(NEW.orValue('') in ['', 'default'])";

/// A text that is not empty.
const GIVEN: &str = "NEW.orValue('') != ''";

/// A pod's security context with settings that Pod Security `baseline` restricts.
const PRIVILEGES: &str = "NEW.?sysctls.hasValue() || NEW.?seLinuxOptions.hasValue() || NEW.?windowsOptions.hasValue() \
    || NEW.?seccompProfile.?type.orValue('RuntimeDefault') != 'RuntimeDefault' \
    || NEW.?appArmorProfile.?type.orValue('RuntimeDefault') != 'RuntimeDefault'";

/// A probe of another host than the pod.
const PROBED_HOST: &str = "NEW.?httpGet.?host.hasValue() || NEW.?tcpSocket.?host.hasValue()";

const PRIVILEGES_EFFECT: &str =
    "sysctls, SELinux and Windows options, and seccomp and AppArmor profiles other than RuntimeDefault";
const ACCOUNT_EFFECT: &str = "pods with the permissions of a ServiceAccount other than default";
const PRIORITY_EFFECT: &str = "pods that can evict those of others";
const PROBE_EFFECT: &str = "requests of the kubelet to another host";

/// Kinds of users, with the fields that require a permission.
pub const KINDS: [Guarded; 3] = [
    Guarded {
        kind: "ModelDeployment",
        group: "kubeairunway.ai",
        plural: "modeldeployments",
        component: labels::CORE_MANAGER,
        fields: &[
            Field {
                path: "provider.overrides.serviceType",
                also: &[],
                when: "!(NEW.orValue('ClusterIP') in ['', 'ClusterIP'])",
                effect: "a Service that is reachable from outside the cluster",
                permission: create("services", ""),
                instead: "set ClusterIP",
            },
            Field {
                path: "serviceAccountName",
                also: &[],
                when: OTHER_ACCOUNT,
                effect: ACCOUNT_EFFECT,
                permission: CREATE_PODS,
                instead: "remove it",
            },
            Field {
                path: "podTemplate.spec.priorityClassName",
                also: &[],
                when: GIVEN,
                effect: PRIORITY_EFFECT,
                permission: CREATE_PODS,
                instead: "remove it",
            },
            Field {
                path: "podTemplate.spec.securityContext",
                also: &[],
                when: PRIVILEGES,
                effect: PRIVILEGES_EFFECT,
                permission: CREATE_PODS,
                instead: "remove them",
            },
            Field {
                path: "podTemplate.metadata.annotations",
                also: &[],
                when: "NEW.orValue({}).exists(k, k.startsWith('container.apparmor.security.beta.kubernetes.io/') && NEW[?k] != OLD[?k])",
                effect: "an AppArmor profile",
                permission: CREATE_PODS,
                instead: "remove container.apparmor.security.beta.kubernetes.io/*",
            },
            Field {
                path: "scaling.autoscaling.trigger",
                also: &[],
                when: "NEW.?authenticationRef.hasValue()",
                effect: "credentials of KEDA (authenticationRef)",
                permission: create("scaledobjects", "keda.sh"),
                instead: "remove authenticationRef",
            },
        ],
    },
    Guarded {
        kind: "AsyncActor",
        group: "asya.sh",
        plural: "asyncactors",
        component: labels::ASYA_MANAGER,
        fields: &[
            Field {
                path: "workload.template",
                also: &["workload.kind"],
                when: "NEW.hasValue() && variables.spec.?workload.?kind.orValue('Deployment') == 'Deployment'",
                effect: "a Deployment with any pods",
                permission: create("deployments", "apps"),
                instead: "set workloadRef instead of workload",
            },
            Field {
                path: "workload.template",
                also: &["workload.kind"],
                when: "NEW.hasValue() && variables.spec.?workload.?kind.orValue('Deployment') == 'StatefulSet'",
                effect: "a StatefulSet with any pods",
                permission: create("statefulsets", "apps"),
                instead: "set workloadRef instead of workload",
            },
            Field {
                path: "binding.proxy.serviceAccountName",
                also: &[],
                when: OTHER_ACCOUNT,
                effect: ACCOUNT_EFFECT,
                permission: CREATE_PODS,
                instead: "remove it",
            },
        ],
    },
    Guarded {
        kind: "LlamaStackDistribution",
        group: "llamastack.io",
        plural: "llamastackdistributions",
        component: labels::llama_stack::MANAGER,
        fields: &[
            Field {
                path: "network.exposeRoute",
                also: &["network.ingress"],
                when: "NEW.orValue(false)",
                effect: "an Ingress",
                permission: create("ingresses", "networking.k8s.io"),
                instead: "remove it",
            },
            // Snippets and requests of the Ingress controller itself. Other annotations belong to the creator of an Ingress.
            Field {
                path: "network.ingress.annotations",
                also: &[],
                when: "NEW.orValue({}).exists(k, k.matches('/([^/]*snippet|auth-|mirror-|proxy-ssl-|config-)') && NEW[?k] != OLD[?k])",
                effect: "configuration of the Ingress controller (*snippet*, auth-*, mirror-*, proxy-ssl-*, config-*)",
                permission: Permission {
                    verb: "update",
                    plural: "ingressclasses",
                    group: "networking.k8s.io",
                    is_namespaced: false,
                },
                instead: "remove these annotations",
            },
            Field {
                path: "network.allowedFrom",
                also: &[],
                when: "['namespaces', 'labels'].exists(list, NEW[?list].orValue([]).exists(name, !(name in OLD[?list].orValue([]))))",
                effect: "a NetworkPolicy that admits other namespaces",
                permission: create("networkpolicies", "networking.k8s.io"),
                instead: "remove the other namespaces",
            },
            Field {
                path: "server.podOverrides.serviceAccountName",
                also: &[],
                when: OTHER_ACCOUNT,
                effect: ACCOUNT_EFFECT,
                permission: CREATE_PODS,
                instead: "remove it",
            },
            Field {
                path: "server.podOverrides.priorityClassName",
                also: &[],
                when: GIVEN,
                effect: PRIORITY_EFFECT,
                permission: CREATE_PODS,
                instead: "remove it",
            },
            Field {
                path: "server.podOverrides.securityContext",
                also: &[],
                when: PRIVILEGES,
                effect: PRIVILEGES_EFFECT,
                permission: CREATE_PODS,
                instead: "remove them",
            },
            // The types that Pod Security `restricted` allows, and images, require no permission.
            Field {
                path: "server.podOverrides.volumes",
                also: &[],
                when: "NEW.orValue([]).exists(volume, !(volume in OLD.orValue([])) && volume.exists(k, !(k in ['name', 'configMap', \
                       'csi', 'downwardAPI', 'emptyDir', 'ephemeral', 'image', 'persistentVolumeClaim', 'projected', 'secret'])))",
                effect: "volumes of the node or of a server, such as hostPath and nfs",
                permission: CREATE_PODS,
                instead: "use a PersistentVolumeClaim",
            },
            Field {
                path: "server.podOverrides.readinessProbe",
                also: &[],
                when: PROBED_HOST,
                effect: PROBE_EFFECT,
                permission: CREATE_PODS,
                instead: "remove host",
            },
            Field {
                path: "server.podOverrides.livenessProbe",
                also: &[],
                when: PROBED_HOST,
                effect: PROBE_EFFECT,
                permission: CREATE_PODS,
                instead: "remove host",
            },
        ],
    },
];

impl Permission {
    /// Verb and resource, such as `create ingresses.networking.k8s.io`.
    pub fn name(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{} {}{dot}{}", self.verb, self.plural, self.group)
    }

    /// The command that checks the permission of the current user in a namespace.
    pub fn check(&self, namespace: &str) -> String {
        let namespace = if self.is_namespaced {
            format!(" -n {namespace}")
        } else {
            String::new()
        };
        format!("kubectl auth can-i {}{namespace}", self.name())
    }

    /// CEL expression that is true if the user has the permission.
    fn granted(&self) -> String {
        let Self {
            verb, plural, group, ..
        } = self;
        let namespace = if self.is_namespaced {
            ".namespace(object.metadata.namespace)"
        } else {
            ""
        };
        format!("authorizer.group('{group}').resource('{plural}'){namespace}.check('{verb}').allowed()")
    }
}

impl Field {
    /// Path of the field in a manifest.
    pub fn path(&self) -> String {
        format!("spec.{}", self.path)
    }

    fn validation(&self) -> Value {
        let optional = |variable: &str, path: &str| format!("variables.{variable}.?{}", path.replace('.', ".?"));
        let (new, old) = (optional("spec", self.path), optional("old", self.path));
        let changes = [self.path].into_iter().chain(self.also.iter().copied());
        let changes: Vec<String> = changes
            .map(|path| format!("{} != {}", optional("spec", path), optional("old", path)))
            .collect();
        let when = self.when.replace("NEW", &new).replace("OLD", &old);
        let place = if self.permission.is_namespaced {
            "namespace ' + object.metadata.namespace + '"
        } else {
            "the cluster"
        };
        let text = format!("{}: you may not {}", self.path(), self.permission.name());
        json!({
            "expression": format!("!(({}) && ({when})) || {}", changes.join(" || "), self.permission.granted()),
            "messageExpression": format!(
                "'{text} in {place}, which is required for {}: {}, or ask an administrator for this permission'",
                self.effect, self.instead
            ),
            "message": text,
            "reason": "Forbidden",
        })
    }
}

/// The admission policies for the users of a component's kinds, and their bindings.
pub(super) fn of_component(component: &str) -> Vec<DynamicObject> {
    KINDS
        .iter()
        .filter(|kind| kind.component == component)
        .flat_map(Guarded::policy)
        .collect()
}

impl Guarded {
    /// Name of the policy.
    pub fn policy_name(&self) -> String {
        format!("kubeairunway-{}", self.plural)
    }

    fn policy(&self) -> Vec<DynamicObject> {
        // Dynamic types, since a policy may name fields that the schema of the CRD does not list, and optional ones.
        let variables = json!([
            { "name": "spec", "expression": "dyn(object.spec)" },
            { "name": "old", "expression": "oldObject == null ? dyn({}) : dyn(oldObject.spec)" },
        ]);
        let validations: Vec<Value> = self.fields.iter().map(Field::validation).collect();
        guard(
            self.component,
            &self.policy_name(),
            (self.group, self.plural),
            &variables,
            &validations,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_compares_with_the_old_object_and_names_field_permission_and_remedy() {
        let field = &KINDS[0].fields[0];
        assert_eq!(
            field.validation(),
            json!({
                "expression": "!((variables.spec.?provider.?overrides.?serviceType != variables.old.?provider.?overrides.?serviceType) \
                    && (!(variables.spec.?provider.?overrides.?serviceType.orValue('ClusterIP') in ['', 'ClusterIP']))) \
                    || authorizer.group('').resource('services').namespace(object.metadata.namespace).check('create').allowed()",
                "messageExpression": "'spec.provider.overrides.serviceType: you may not create services in namespace ' + \
                    object.metadata.namespace + ', which is required for a Service that is reachable from outside the cluster: set \
                    ClusterIP, or ask an administrator for this permission'",
                "message": "spec.provider.overrides.serviceType: you may not create services",
                "reason": "Forbidden",
            })
        );
    }

    #[test]
    fn commands_check_the_permission_where_it_is_required() {
        let ingress = &KINDS[2].fields[0].permission;
        assert_eq!(
            ingress.check("team-a"),
            "kubectl auth can-i create ingresses.networking.k8s.io -n team-a"
        );
        let class = &KINDS[2].fields[1].permission;
        assert_eq!(
            class.check("team-a"),
            "kubectl auth can-i update ingressclasses.networking.k8s.io"
        );
    }
}
