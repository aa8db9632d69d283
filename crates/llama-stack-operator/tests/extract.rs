//! The search for a distribution's own configuration, with the real script in a shell.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result};
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

    /// Runs the script, with the places of an image below a folder of its own.
    fn extract(&self, environment: &[(&str, &Path)]) -> Result<Output> {
        let script = ["/opt/app-root/", "/etc/llama-stack/", "/app/"]
            .iter()
            .fold(EXTRACT_CONFIG.to_owned(), |script, place| {
                script.replace(&format!(" {place}"), &format!(" {}{place}", self.0.path().display()))
            });
        let mut command = Command::new("sh");
        command.args(["-c", &script, "extract_config.sh"]);
        command.arg(self.path("out"));
        for name in ["RUN_CONFIG_PATH", "DISTRO_NAME", "LLS_DISTRIBUTION_NAME"] {
            command.env_remove(name);
        }
        command.env("PYTHONPATH", self.path("python"));
        command.env("TERMINATION_LOG", self.path("termination-log"));
        Ok(command.envs(environment.iter().copied()).output()?)
    }

    fn add(&self, file: &str, content: &str) -> Result<()> {
        let file = self.path(file);
        fs::create_dir_all(file.parent().context("a file is in a folder")?)?;
        Ok(fs::write(file, content)?)
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
        let reported = fs::read_to_string(self.path("termination-log"))?;
        assert_eq!(reported, String::from_utf8_lossy(&output.stderr));
        Ok(reported.replace(&self.0.path().display().to_string(), ""))
    }
}

#[test]
fn an_image_without_a_configuration_of_its_own_is_refused_and_not_given_that_of_starter() -> Result<()> {
    let reported = Image::new()?.refused(&[])?;
    for wanted in [
        "ERROR: No run.yaml found in distribution image\n",
        "  - /opt/app-root/run.yaml (not found)\n",
        "  - /etc/llama-stack/run.yaml (not found)\n",
        "DISTRO_NAME is not set",
        "Distributions of these packages: remote-vllm, starter\n",
        "Resolution: Either provide a user ConfigMap with run.yaml (spec.server.userConfig)",
        "DISTRO_NAME of spec.server.containerSpec.env",
    ] {
        assert!(reported.contains(wanted), "no {wanted:?} in:\n{reported}");
    }
    Ok(())
}

#[test]
fn a_distribution_that_the_image_names_and_does_not_have_is_in_the_message() -> Result<()> {
    let reported = Image::new()?.refused(&[
        ("DISTRO_NAME", "mine".as_ref()),
        ("RUN_CONFIG_PATH", "/mine.yaml".as_ref()),
    ])?;
    assert!(
        reported.contains(": mine (not found)") && reported.contains(": /mine.yaml (not found)"),
        "{reported}"
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

#[test]
fn of_two_configurations_the_first_place_counts_and_the_other_is_in_the_log() -> Result<()> {
    let image = Image::new()?;
    for (place, name) in [
        ("app", "last"),
        ("etc/llama-stack", "second"),
        ("opt/app-root", "first"),
    ] {
        image.add(&format!("{place}/run.yaml"), &format!("image_name: {name}\n"))?;
        assert_eq!(image.found(&[])?, format!("image_name: {name}\n"));
    }
    let said = String::from_utf8(image.extract(&[])?.stdout)?;
    let root = image.0.path().display();
    for place in ["etc/llama-stack", "app"] {
        let note =
            format!("NOTE: {root}/{place}/run.yaml is not used, since {root}/opt/app-root/run.yaml comes first\n");
        assert!(said.contains(&note), "no {note:?} in:\n{said}");
    }
    // The file that the image names is one of them.
    let named = image.path("app/run.yaml");
    assert_eq!(image.found(&[("RUN_CONFIG_PATH", &named)])?, "image_name: last\n");
    let said = String::from_utf8(image.extract(&[("RUN_CONFIG_PATH", &named)])?.stdout)?;
    assert_eq!(said.matches("NOTE: ").count(), 2, "{said}");
    Ok(())
}

#[test]
fn a_configuration_that_cannot_be_read_is_a_failure_and_not_replaced_by_another() -> Result<()> {
    let image = Image::new()?;
    image.add("opt/app-root/run.yaml", "image_name: another\n")?;
    // A file that not even root can read.
    let reported = image.refused(&[("RUN_CONFIG_PATH", "/proc/self/mem".as_ref())])?;
    for wanted in [
        "ERROR: Cannot read the configuration of the distribution image\nFile: /proc/self/mem\nReason: ",
        "Resolution: Make the file readable",
    ] {
        assert!(reported.contains(wanted), "no {wanted:?} in:\n{reported}");
    }
    Ok(())
}
