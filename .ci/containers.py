"""Reads docker-compose.yml and the Dockerfile without an engine, and checks what the engine relies on."""

import re
import shlex
import sys

import yaml

faults = []


def expect(condition, fault):
    if not condition:
        faults.append(fault)


def settings_of(command, flag):
    """The name = value pairs that follow each `flag` in a list command."""
    return dict(value.split("=", 1) for name, value in zip(command, command[1:]) if name == flag)


def check_compose():
    with open("docker-compose.yml", encoding="utf-8") as file:
        compose = yaml.safe_load(file)
    services = compose["services"]
    expect({"api", "worker", "migrate", "postgres", "redis"} <= set(services), "compose: a service is missing")

    redis = [str(word) for word in services["redis"]["command"]]
    options = dict(zip(redis, redis[1:]))
    wanted = {
        "--maxmemory-policy": "noeviction",
        "--notify-keyspace-events": "Ex",
        "--hz": "100",
        "--appendonly": "yes",
        "--appendfsync": "everysec",
    }
    for name, value in wanted.items():
        expect(options.get(name) == value, f"compose: redis needs {name} {value}, has {options.get(name)}")

    postgres = settings_of([str(word) for word in services["postgres"]["command"]], "-c")
    expect(postgres.get("fsync", "on") == "on", "compose: postgres must not lose acknowledged writes")
    expect(postgres.get("synchronous_commit", "on") == "on", "compose: postgres must not lose acknowledged writes")

    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            expect(other in services, f"compose: {name} depends on {other}, which is not there")
            if how["condition"] == "service_healthy":
                expect("healthcheck" in services.get(other, {}), f"compose: {other} has no healthcheck")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            expect(source.startswith(".") or source in compose["volumes"], f"compose: volume {source} is not declared")
        for port in service.get("ports", []):
            expect(port.startswith("127.0.0.1:"), f"compose: {name} publishes {port} to everybody")
        for key, value in service.get("environment", {}).items():
            is_secret = re.search("PASSWORD|SECRET|AUTH|_URL$", key)
            expect(not is_secret or "${" in value, f"compose: {name}'s {key} must come from the environment")
    for name in ("postgres", "redis", "api", "worker"):
        expect("healthcheck" in services[name], f"compose: {name} has no healthcheck")
    for name in ("postgres", "redis"):
        expect(services[name].get("volumes"), f"compose: {name} keeps nothing")


def instructions(text):
    """The Dockerfile's instructions: comments and here-documents left out, continued lines joined."""
    text = re.sub(r'<<"?(\w+)"?([^\n]*)\n.*?\n\1\n', r"\2\n", text, flags=re.S)
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word.upper(), rest.strip()


def check_dockerfile():
    known = {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    with open("Dockerfile", encoding="utf-8") as file:
        found = list(instructions(file.read()))
    expect(found and found[0][0] == "FROM", "Dockerfile: begins without FROM")
    stages, user = set(), None
    for word, rest in found:
        expect(word in known, f"Dockerfile: {word} is not an instruction that we use")
        if word == "FROM":
            image = rest.split()[0]
            expect(":" in image or image in stages, f"Dockerfile: {image} has no version")
            stages.add(rest.split()[-1])
            user = None
        elif word == "USER":
            user = rest
        elif word == "COPY" and "--from=" in rest:
            stage = re.search(r"--from=(\S+)", rest)[1]
            expect(stage in stages, f"Dockerfile: COPY from {stage}, which is not a stage")
        elif word == "RUN":
            shlex.split(rest)
    expect(user and not user.startswith(("0", "root")), "Dockerfile: the last stage runs as root")
    with open("rust-toolchain.toml", encoding="utf-8") as file:
        version = re.search(r'channel = "(\d+\.\d+)', file.read())[1]
    expect(f"rust:{version}-" in found[0][1], f"Dockerfile: builds with another Rust than {version}")


check_compose()
check_dockerfile()
if faults:
    sys.exit("\n".join(faults))
print("docker-compose.yml and Dockerfile: as the engine needs them")
