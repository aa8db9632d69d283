//! Any text as a kubeconfig, and any context in it: the result is an error, or a configuration whose namespace is a
//! name and which makes a client or is refused.
//!
//! Plugins and paths are removed before a client is made: a client runs the plugins that its kubeconfig names.

use kube::Client;
use kube::config::Kubeconfig;
use runway_operator::client::{self, ClientArgs};

pub fn run(data: &[u8]) {
    let [context, yaml] = crate::parts(data);
    let (Some(context), Some(yaml)) = (crate::text(context), crate::text(yaml)) else {
        return;
    };
    let Ok(mut kubeconfig) = Kubeconfig::from_yaml(yaml) else {
        return;
    };
    leave_the_machine_alone(&mut kubeconfig);
    let args = ClientArgs {
        kubeconfig: None,
        context: Some(context.to_owned()).filter(|name| !name.is_empty()),
    };
    crate::wait(async {
        let Ok(config) = args.config_of(kubeconfig).await else {
            return;
        };
        let namespace = client::namespace(&config).expect("it was checked");
        assert!(!namespace.is_empty() && !namespace.contains(['/', '?', '#', '%']));
        client::install_crypto();
        let _ = Client::try_from(config);
    });
}

fn leave_the_machine_alone(kubeconfig: &mut Kubeconfig) {
    for cluster in &mut kubeconfig.clusters {
        if let Some(cluster) = &mut cluster.cluster {
            cluster.certificate_authority = None;
        }
    }
    for user in &mut kubeconfig.auth_infos {
        if let Some(user) = &mut user.auth_info {
            user.exec = None;
            user.auth_provider = None;
            user.token_file = None;
            user.client_certificate = None;
            user.client_key = None;
        }
    }
}
