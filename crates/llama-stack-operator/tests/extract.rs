//! The search for a distribution's own configuration, with the real script in a shell.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::Result;
use runway_llama_stack_operator::pod::EXTRACT_CONFIG;
use tempfile::TempDir;

/// A distribution image as far as the script sees it: a Python package with the files of several distributions.
struct Image(TempDir);

impl Image {
    fn new() -> Result<Self> {
        let image = Self(tempfile::tempdir()?);
        for name in ["starter", "remote-vllm"] {
            let folder = image.path("python/llama_stack/distributions").join(name);
            fs::create_dir_all(&folder)?;
            fs::write(folder.join("config.yaml"), format!("image_name: {name}\n"))?;
        }
        fs::write(image.path("python/llama_stack/__init__.py"), "")?;
        fs::create_dir(image.path("out"))?;
        fs::write(image.path("termination-log"), "")?;
        Ok(image)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn extract(&self, environment: &[(&str, &Path)]) -> Result<Output> {
        let mut command = Command::new("sh");
        command.args(["-c", EXTRACT_CONFIG, "extract_config.sh"]);
        command.arg(self.path("out"));
        for name in ["RUN_CONFIG_PATH", "DISTRO_NAME", "LLS_DISTRIBUTION_NAME"] {
            command.env_remove(name);
        }
        command.env("PYTHONPATH", self.path("python"));
        command.env("TERMINATION_LOG", self.path("termination-log"));
        Ok(command.envs(environment.iter().copied()).output()?)
    }

    fn found(&self, environment: &[(&str, &Path)]) -> Result<String> {
        let output = self.extract(environment)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(fs::read_to_string(self.path("out/run.yaml"))?)
    }

    fn refused(&self, environment: &[(&str, &Path)]) -> Result<String> {
        let output = self.extract(environment)?;
        assert_eq!(
            output.status.code(),
            Some(1),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        assert!(!self.path("out/run.yaml").exists());
        let told = fs::read_to_string(self.path("termination-log"))?;
        assert_eq!(told, String::from_utf8_lossy(&output.stderr));
        Ok(told)
    }
}

#[test]
fn an_image_without_a_configuration_of_its_own_is_refused_and_not_given_that_of_starter() -> Result<()> {
    let told = Image::new()?.refused(&[])?;
    for wanted in [
        "ERROR: No run.yaml found in distribution image\n",
        "  - /opt/app-root/run.yaml (not found)\n",
        "  - /etc/llama-stack/run.yaml (not found)\n",
        "DISTRO_NAME is not set",
        "Distributions of these packages: remote-vllm, starter\n",
        "Resolution: Either provide a user ConfigMap with run.yaml (spec.server.userConfig)",
        "DISTRO_NAME of spec.server.containerSpec.env",
    ] {
        assert!(told.contains(wanted), "no {wanted:?} in:\n{told}");
    }
    Ok(())
}

#[test]
fn a_distribution_that_the_image_names_and_does_not_have_is_in_the_message() -> Result<()> {
    let told = Image::new()?.refused(&[
        ("DISTRO_NAME", "mine".as_ref()),
        ("RUN_CONFIG_PATH", "/mine.yaml".as_ref()),
    ])?;
    assert!(
        told.contains(": mine (not found)") && told.contains(": /mine.yaml (not found)"),
        "{told}"
    );
    Ok(())
}

#[test]
fn the_configuration_is_found_by_what_the_image_and_the_spec_name() -> Result<()> {
    let image = Image::new()?;
    let file = image.path("mine.yaml");
    fs::write(&file, "image_name: mine\n")?;
    let found = |environment: &[(&str, &Path)]| image.found(environment);
    assert_eq!(
        found(&[("LLS_DISTRIBUTION_NAME", "starter".as_ref())])?,
        "image_name: starter\n"
    );
    let both: [(&str, &Path); 2] = [
        ("LLS_DISTRIBUTION_NAME", "starter".as_ref()),
        ("DISTRO_NAME", "remote-vllm".as_ref()),
    ];
    assert_eq!(found(&both)?, "image_name: remote-vllm\n");
    assert_eq!(found(&[("RUN_CONFIG_PATH", &file), both[1]])?, "image_name: mine\n");
    Ok(())
}
