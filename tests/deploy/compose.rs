//! `deploy/compose.yaml` and `deploy/Dockerfile`, started.
//!
//! Here: image, environment, secrets and health checks according to the files, with the built
//! server in place of the image's.

use std::{collections::BTreeMap, fmt::Write as _};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::machine::{Plan, three_count_as_one};
use super::{read, seconds, text};
use crate::cluster::net::Net;

/// The result of the Dockerfile's last stage.
#[derive(Debug, Default)]
pub(super) struct Image {
    pub(super) environment: BTreeMap<String, String>,
    pub(super) user: String,
    folder: String,
    /// Folders, as arguments of `install`.
    pub(super) folders: String,
}

impl Image {
    pub(super) fn read() -> Self {
        let file = read("Dockerfile").replace("\\\n", " ");
        let stage = file.rsplit("\nFROM ").next().expect("it has a stage");
        let mut image = Self::default();
        for line in stage.lines().skip(1) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "RUN" => {
                    for command in rest.split("&&").map(str::trim) {
                        match command.split(' ').next() {
                            Some("install") => image.folders.push_str(&[command, "\n"].concat()),
                            // The user, which exists on every machine of this test.
                            Some("groupadd" | "useradd") => assert!(command.contains("id 11211")),
                            _ => panic!("the test does not know {command}"),
                        }
                    }
                }
                "ENV" => {
                    for pair in rest.split_whitespace() {
                        let (name, value) = pair.split_once('=').expect("NAME=VALUE");
                        image.environment.insert(name.to_owned(), value.to_owned());
                    }
                }
                "USER" => rest.clone_into(&mut image.user),
                "WORKDIR" => rest.clone_into(&mut image.folder),
                "COPY" => assert!(rest.ends_with("/release/tollgate /usr/local/bin/tollgate")),
                "ENTRYPOINT" => assert_eq!(rest, r#"["/usr/local/bin/tollgate"]"#),
                "STOPSIGNAL" => assert_eq!(rest, "SIGTERM"),
                "EXPOSE" => assert_eq!(rest, "11211 21211"),
                "" | "#" => {}
                _ => panic!("the test does not know {line}"),
            }
        }
        image
    }

    /// A server of this image, without flags.
    pub(super) fn plan(&self) -> Plan {
        Plan {
            environment: self.environment.clone(),
            user: self.user.clone(),
            prepare: self.folders.clone(),
            folder: self.folder.clone(),
            ..Plan::default()
        }
    }
}

#[test]
fn compose_starts_three_nodes_that_count_as_one() {
    let name = "compose_starts_three_nodes_that_count_as_one";
    let Some(mut net) = Net::or_say_why(name) else { return };
    let image = Image::read();
    let compose: Value = serde_saphyr::from_str(&read("compose.yaml")).expect("good YAML");
    let services = compose["services"].as_object().expect("it has services");
    assert_eq!(services.len(), 3);

    let (mut names, mut plans, mut health) = (String::new(), Vec::new(), Vec::new());
    for (number, (service, what)) in services.iter().enumerate() {
        net.add().expect("a place more");
        writeln!(names, "{} {service}", net.host(number as u8)).expect("a String");
        let mut plan = image.plan();
        for (variable, value) in what["environment"].as_object().expect("it has an environment") {
            plan.environment.insert(variable.clone(), text(value));
        }
        // A container sees a secret's file with the mode that it has on the host; the header of the
        // compose file names the user who must be able to read it.
        for secret in what["secrets"].as_array().expect("it has secrets") {
            let secret = text(secret);
            assert!(compose["secrets"][&secret]["file"].is_string(), "{secret} is declared");
            let folder = "/run/secrets";
            writeln!(
                plan.prepare,
                "mkdir -p {folder}\nprintf 0123456789abcdef0123456789abcdef > {folder}/{secret}"
            )
            .expect("a String");
        }
        // A new volume at a folder of the image starts with the folder's owner and mode.
        for volume in what["volumes"].as_array().expect("it has volumes") {
            let volume = text(volume);
            let (volume, folder) = volume.split_once(':').expect("NAME:FOLDER");
            assert!(compose["volumes"].get(volume).is_some(), "{volume} is declared");
            assert!(image.folders.contains(folder), "{folder} belongs to the server");
        }
        let port = format!("127.0.0.1:{}:11211", 11211 + number);
        assert_eq!(what["ports"], serde_json::json!([port]), "as the header tells");
        let drain = plan.environment["TOLLGATE_DRAIN_TIMEOUT"].parse::<u64>().expect("seconds");
        assert!(seconds(&text(&what["stop_grace_period"])) > drain, "a drain may end");

        let check: Vec<String> =
            what["healthcheck"]["test"].as_array().expect("a list").iter().map(text).collect();
        assert_eq!(check[0], "CMD");
        health = check[1..].to_vec();
        plans.push(plan);
    }
    let plans = plans.try_into().expect("there are three");
    three_count_as_one(&net, &names, plans, &health, |first| first.signal(Signal::SIGTERM));
}

#[test]
fn an_image_alone_serves_and_has_its_admin_socket() {
    let Some(mut net) = Net::or_say_why("an_image_alone_serves_and_has_its_admin_socket") else {
        return;
    };
    net.add().expect("a place");
    let mut plan = Image::read().plan();
    // The flags of the header's `docker run`.
    let header = read("Dockerfile");
    let line = header.lines().find(|line| line.contains("docker run")).expect("it has one");
    let (_, flags) = line.split_once(&format!("tollgate:{} ", super::VERSION)).expect("the tag");
    plan.args = flags.split(' ').map(str::to_owned).collect();
    let mut machine = super::machine::Machine::start(&net, 0, "", plan);
    machine.until_it_listens();
    assert_eq!(machine.ask("set hits 0 0 1\r\n1\r\n").as_deref(), Some("STORED"));
    assert_eq!(machine.ask("incr hits 1\r\n").as_deref(), Some("2"));
    let output = machine.run(&["tollgate", "cluster", "nodes"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(said, "tollgate: /run/tollgate/admin.sock is in no cluster\n");
}
