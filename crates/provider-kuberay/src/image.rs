//! Image of head and workers, and its Ray version.

/// User of Ray's images (Ray `docker/base-deps/Dockerfile`, RAY_UID).
pub(crate) const USER: i64 = 1000;

/// Ray version in an image's tag: `2.56.0-py312-cu130` in any repository, `2.56.0` in repositories with the name of Ray's own
/// (`ray`, `ray-llm`, …). Any other tag may be the version of something else.
pub(crate) fn ray_version(image: &str) -> Option<&str> {
    let named = image.split('@').next()?;
    let (repository, tag) = named.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'))?;
    let (version, rest) = tag.split_once('-').unwrap_or((tag, ""));
    let numbers: Vec<&str> = version.split('.').collect();
    let is_version = numbers.len() == 3
        && numbers
            .iter()
            .all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let family = repository.rsplit('/').next()?;
    let is_rays = family == "ray" || family.starts_with("ray-") || rest.split('-').any(|part| part.starts_with("py3"));
    (is_version && is_rays).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_tag_or_omitted() {
        for (image, version) in [
            ("rayproject/ray-llm:2.56.0-py312-cu130", Some("2.56.0")),
            ("rayproject/ray-llm:2.52.0-py311-cu128", Some("2.52.0")),
            ("rayproject/ray:2.9.0-gpu", Some("2.9.0")),
            (
                "registry:5000/team/ray-llm:2.54.0-extra-py311-cu128@sha256:00",
                Some("2.54.0"),
            ),
            ("team/serving:2.54.0-py311", Some("2.54.0")),
            ("vllm/vllm-openai:0.11.0", None),
            ("rayproject/ray-llm:nightly-py311-cu128", None),
            ("rayproject/ray-llm:latest", None),
            ("rayproject/ray-llm", None),
            ("registry:5000/ray-llm", None),
            ("rayproject/ray-llm@sha256:00", None),
            ("rayproject/ray-llm:2.54", None),
        ] {
            assert_eq!(ray_version(image), version, "{image}");
        }
    }
}
