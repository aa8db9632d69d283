//! The faults, in the order of their injection.

use futures::FutureExt as _;

use super::Fault;

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "PodKill",
        effect: "all controllers' pods are deleted without grace",
        requests_may_fail: false,
        inject: |campaign| campaign.pod_kill().boxed_local(),
    },
    Fault {
        name: "DeploymentScaleZero",
        effect: "the controllers' Deployments are scaled to 0, and the model is changed meanwhile",
        requests_may_fail: false,
        inject: |campaign| campaign.deployment_scale_zero().boxed_local(),
    },
    Fault {
        name: "LeaderElectionDisrupt",
        effect: "all Leases of the controllers are deleted",
        requests_may_fail: false,
        inject: |campaign| campaign.leader_election_disrupt().boxed_local(),
    },
    Fault {
        name: "NetworkPartition",
        effect: "no packet of the controllers' pods is forwarded for 20 s, and the model is changed meanwhile",
        requests_may_fail: false,
        inject: |campaign| campaign.network_partition().boxed_local(),
    },
    Fault {
        name: "ApiServerOutage",
        effect: "kube-apiserver is unavailable for 20 s",
        requests_may_fail: false,
        inject: |campaign| campaign.api_server_outage().boxed_local(),
    },
    Fault {
        name: "EtcdOutage",
        effect: "etcd is killed, and is unavailable for 20 s",
        requests_may_fail: false,
        inject: |campaign| campaign.etcd_outage().boxed_local(),
    },
    Fault {
        name: "DiskFull",
        effect: "the disk of etcd is full for 20 s, so that every write fails; a pod of the model is killed meanwhile",
        requests_may_fail: true,
        inject: |campaign| campaign.disk_full().boxed_local(),
    },
    Fault {
        name: "NodeLoss",
        effect: "the kubelet stands still and the engine is killed, until the node and the model are not ready",
        requests_may_fail: true,
        inject: |campaign| campaign.node_loss().boxed_local(),
    },
    Fault {
        name: "MemoryLoss",
        effect: "the kubelet restarts with less memory than its pods request, and rejects the model's pod",
        requests_may_fail: true,
        inject: |campaign| campaign.memory_loss().boxed_local(),
    },
    Fault {
        name: "ImageCorrupt",
        effect: "the controllers' Deployments get an image that does not exist",
        requests_may_fail: false,
        inject: |campaign| campaign.image_corrupt().boxed_local(),
    },
    Fault {
        name: "CrashLoopInject",
        effect: "the controllers' Deployments get a command that does not exist",
        requests_may_fail: false,
        inject: |campaign| campaign.crash_loop_inject().boxed_local(),
    },
    Fault {
        name: "SecretDeletion",
        effect: "the Secret of the webhook's authority is deleted",
        requests_may_fail: false,
        inject: |campaign| campaign.secret_deletion().boxed_local(),
    },
    Fault {
        name: "ConfigDrift",
        effect: "every value of that Secret is overwritten",
        requests_may_fail: false,
        inject: |campaign| campaign.config_drift().boxed_local(),
    },
    Fault {
        name: "WebhookDisrupt",
        effect: "the CA bundles of the webhooks are removed, and admission must succeed (`failurePolicy: Fail`)",
        requests_may_fail: false,
        inject: |campaign| campaign.webhook_disrupt().boxed_local(),
    },
    Fault {
        name: "WebhookAway",
        effect: "the core is scaled to 0 while 1,000 models are created, a tenth of them invalid",
        requests_may_fail: false,
        inject: |campaign| campaign.webhook_away().boxed_local(),
    },
    Fault {
        name: "WebhookLatency",
        effect: "another webhook delays every write of ModelDeployments and Deployments by 5 s",
        requests_may_fail: false,
        inject: |campaign| campaign.webhook_latency().boxed_local(),
    },
    Fault {
        name: "CRDMutation",
        effect: "another client sets another image in the model's Deployment",
        requests_may_fail: false,
        inject: |campaign| campaign.crd_mutation().boxed_local(),
    },
    Fault {
        name: "LabelStomping",
        effect: "a label of the model's Deployment is overwritten, another is removed",
        requests_may_fail: false,
        inject: |campaign| campaign.label_stomping().boxed_local(),
    },
    Fault {
        name: "OwnerRefOrphan",
        effect: "the owner of the model's Deployment is removed, which is reported, and set again",
        requests_may_fail: false,
        inject: |campaign| campaign.owner_ref_orphan().boxed_local(),
    },
    Fault {
        name: "ResourceDeletion",
        effect: "the model's Service is deleted; requests until it is there again fail",
        requests_may_fail: true,
        inject: |campaign| campaign.resource_deletion().boxed_local(),
    },
    Fault {
        name: "FinalizerBlock",
        effect: "a finalizer of another controller holds the Deployment of a model that is deleted",
        requests_may_fail: false,
        inject: |campaign| campaign.finalizer_block().boxed_local(),
    },
    Fault {
        name: "QuotaExhaustion",
        effect: "a ResourceQuota allows no further pod when the model is scaled up",
        requests_may_fail: false,
        inject: |campaign| campaign.quota_exhaustion().boxed_local(),
    },
    Fault {
        name: "RBACRevoke",
        effect: "the controllers' ClusterRoleBindings lose their subjects for 20 s, and the model is changed meanwhile",
        requests_may_fail: false,
        inject: |campaign| campaign.rbac_revoke().boxed_local(),
    },
    Fault {
        name: "PDBBlock",
        effect: "a PodDisruptionBudget forbids evictions of the controllers",
        requests_may_fail: false,
        inject: |campaign| campaign.pdb_block().boxed_local(),
    },
    Fault {
        name: "NamespaceDeletion",
        effect: "the namespace of the controllers is deleted, and the product is installed again",
        requests_may_fail: false,
        inject: |campaign| campaign.namespace_deletion().boxed_local(),
    },
];
