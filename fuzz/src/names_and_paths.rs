//! Any text as what a command is about: what is accepted makes a path of the API with exactly the segments of its kind, and nothing
//! behind them.

use kube::Resource as _;
use kube::api::GetParams;
use kube::core::{DynamicObject, Request};
use runway_client::target::Target;

const NAMESPACE: &str = "default";

pub fn run(data: &[u8]) {
    let Some(text) = crate::text(data) else { return };
    let Ok(target) = text.parse::<Target>() else { return };
    assert_eq!(
        target.to_string().parse::<Target>().unwrap(),
        target,
        "what is shown can be given again"
    );
    let namespace = target.kind.is_namespaced().then_some(NAMESPACE);
    let resource = target.kind.resource();
    let request = Request::new(DynamicObject::url_path(&resource, namespace));
    let request = request.get(&target.name, &GetParams::default()).unwrap();
    let place = namespace.map_or_else(String::new, |namespace| format!("/namespaces/{namespace}"));
    let wanted = format!(
        "/apis/{}/{}{place}/{}/{}",
        resource.group, resource.version, resource.plural, target.name
    );
    assert_eq!(request.uri().path(), wanted);
    assert_eq!(request.uri().query(), None);
}
