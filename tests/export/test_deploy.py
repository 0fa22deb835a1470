"""The deployment files: by schema, by message, and against each other."""

import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse

import kubernetes_validate
import pytest
import requests
import yaml
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

from export import client, local_server, messages

DEPLOY = pathlib.Path(__file__).parents[2] / "export" / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
BATCHING = "batching_parameters.txt"
MODELS, MONITORING = "models.config", "monitoring.config"
GRPC_PORT, REST_PORT = 8500, 8501  # of the image: tools/docker/Dockerfile
HERE = pathlib.Path(__file__).parent
# TensorFlow Serving's model_servers/main.cc.
FLAGS = set((HERE / "serving_flags.txt").read_text().split())


def read(*parts):
    return DEPLOY.joinpath(*parts).read_text(encoding="utf-8")


def load(*parts):
    return yaml.safe_load(read(*parts))


def manifests():
    base = KUBERNETES / "base"
    for name in load(base, "kustomization.yaml")["resources"]:
        if name.endswith(".yaml"):
            yield from yaml.safe_load_all((base / name).read_text())


def manifest(kind):
    (found,) = (m for m in manifests() if m["kind"] == kind)
    return found


COMPOSE = load("compose.yaml")["services"]["server"]
TEMPLATE = manifest("Deployment")["spec"]["template"]
LABELS, POD = TEMPLATE["metadata"]["labels"], TEMPLATE["spec"]
(CONTAINER,) = POD["containers"]
(SCRAPED,) = load("config", "prometheus.yml")["scrape_configs"]
(ALERTS,) = load("config", "alerts.yml")["groups"]


def commands():
    """Yields the server's flags, `{flag: value}`, of Compose, of Kubernetes."""
    for words in (COMPOSE["command"], CONTAINER["args"]):
        split = (word.removeprefix("--").partition("=") for word in words)
        yield {flag: value for flag, _, value in split}


def parse(name, message):
    """Parses a text-format file as a message of `serving.txtpb`."""
    schema = (HERE / "serving.txtpb").read_text()
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(schema, descriptor_pb2.FileDescriptorProto()))
    descriptor = pool.FindMessageTypeByName(f"serving.{message}")
    return text_format.Parse(
        read("config", name), message_factory.GetMessageClass(descriptor)()
    )


def served_models():
    return text_format.Parse(
        read("config", MODELS),
        messages.model_server_config_pb2.ModelServerConfig(),
    )


@pytest.fixture(scope="module")
def two_models(half_plus, tmp_path_factory):
    """The stand-in of two models, whose folder has versions 1 and 2.

    `encoder` is served by `config/models.config`, its path replaced. `canary`
    has what the page adds to that for a canary by labels.
    """
    config = served_models()
    (model,) = config.model_config_list.config
    model.base_path = str(half_plus)
    canary = config.model_config_list.config.add()
    canary.CopyFrom(model)
    canary.name = "canary"
    canary.model_version_policy.specific.versions.append(2)
    canary.version_labels["canary"] = 2
    path = tmp_path_factory.mktemp("config") / MODELS
    path.write_text(text_format.MessageToString(config))
    with local_server.started(
        "canary",
        *("--model_config_file", str(path)),
        "--allow_version_labels_for_unavailable_models",
    ) as server:
        yield server


def kubectl(folder):
    """Renders a Kustomization; returns its documents."""
    if not shutil.which("kubectl"):
        pytest.skip("needs kubectl")
    rendered = subprocess.check_output(["kubectl", "kustomize", folder])
    return list(yaml.safe_load_all(rendered))


def test_batching_parameters():
    config = parse(BATCHING, "BatchingParameters")
    sizes = list(config.allowed_batch_sizes)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == config.max_batch_size.value
    assert not config.pad_variable_length_inputs
    for flags in commands():
        for flag in ("rest_api_num_threads", "grpc_max_threads"):
            assert int(flags[flag]) == 2 * config.max_batch_size.value


def test_monitoring():
    config = parse(MONITORING, "MonitoringConfig")
    assert config.prometheus_config.enable
    assert config.prometheus_config.path == SCRAPED["metrics_path"]
    assert SCRAPED["static_configs"] == [{"targets": [f"server:{REST_PORT}"]}]


def test_a_new_version_waits_for_its_name():
    (model,) = served_models().model_config_list.config
    assert model.base_path == f"/models/{model.name}"
    served = model.model_version_policy.specific.versions
    assert set(model.version_labels.values()) == set(served) == {1}


@pytest.mark.parametrize("protocol", ["grpc_url", "rest_url"])
def test_versions_and_labels(two_models, protocol):
    url = getattr(two_models, protocol)
    for name, label, version in (
        ("encoder", None, 1),
        ("encoder", "stable", 1),
        ("canary", "stable", 1),
        ("canary", "canary", 2),
    ):
        with client.connect(url, name, label=label) as connection:
            assert connection.version() == version


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool")
@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", DEPLOY / "config" / "prometheus.yml"),
        ("test", "rules", HERE / "alerts_test.yml"),
    ],
)
def test_promtool(words):
    subprocess.run(["promtool", *words], check=True)


def test_alerts_use_metrics_that_the_page_names():
    named = set(re.findall(r"^\| `(:\S+)` ", read("README.md"), re.MULTILINE))
    for rule in ALERTS["rules"]:
        used = set(re.findall(r"(:[a-z_:]+)[{[]", rule["expr"]))
        assert {name.removesuffix("_bucket") for name in used} <= named
    assert load("config", "prometheus.yml")["rule_files"] == ["alerts.yml"]


def test_every_alert_says_how_urgent_it_is():
    urgent = {r["alert"]: r["labels"]["severity"] for r in ALERTS["rules"]}
    assert set(urgent.values()) == {"critical", "warning", "info"}
    assert urgent["ModelServerClientMistakes"] == "info"


def test_alerts_as_a_custom_resource():
    (command,) = re.findall(r"^\((printf.*)\) \|", read("README.md"), re.M)
    written = subprocess.check_output(["sh", "-c", command], cwd=DEPLOY)
    rule = yaml.safe_load(written)
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == load("config", "alerts.yml")


def test_the_pods_are_scraped():
    monitor = load("kubernetes", "pod_monitor.yaml")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert monitor["selector"]["matchLabels"] == LABELS
    assert LABELS[monitor["jobLabel"]] == SCRAPED["job_name"]
    assert endpoint["path"] == SCRAPED["metrics_path"]
    assert endpoint["port"] in {p["name"] for p in CONTAINER["ports"]}
    jobs = set(
        re.findall(r'job="([^"]*)"', json.dumps(ALERTS).replace("\\", ""))
    )
    assert jobs == {SCRAPED["job_name"]}


def test_compose_schema():
    paths = [DEPLOY / f"compose{gpu}.yaml" for gpu in ("", ".gpu")]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    subprocess.run([*command, "vendor.compose-spec", *paths], check=True)


def test_images_are_of_one_version():
    assert COMPOSE["image"] == CONTAINER["image"]
    tag = COMPOSE["image"].removeprefix("tensorflow/serving:")
    assert re.fullmatch(r"2\.20\.\d+", tag)
    gpu = load("compose.gpu.yaml")["services"]["server"]["image"]
    assert gpu == f"tensorflow/serving:{tag}-gpu"
    overlay = load("kubernetes", "overlays", "gpu", "kustomization.yaml")
    (image,) = overlay["images"]
    assert f"{image['name']}:{image['newTag']}" == gpu


def test_flags_exist():
    compose, kubernetes = commands()
    assert kubernetes.keys() <= FLAGS
    for flags in (compose, kubernetes):
        assert flags["enable_batching"] == ""
        assert flags["enable_profiler"] == "false"
    assert kubernetes["model_config_file"] == f"/config/{MODELS}"
    # Empty, it is as if not given: the image's MODEL_NAME then counts.
    assert compose.pop("model_config_file") == "${MODEL_CONFIG_FILE:-}"
    assert compose.items() <= kubernetes.items()
    page = {
        flag
        for text in re.findall(r"`(--[^`]*)`", read("README.md"))
        for flag in re.findall(r"--([a-z]\w+)", text)
    }
    assert page <= FLAGS


def test_whoever_writes_models_does_not_configure_the_server():
    for flags in commands():
        files = {v for flag, v in flags.items() if flag.endswith("_file")}
        assert {f"/config/{name}" for name in (BATCHING, MONITORING)} <= files
        assert not any(file.startswith("/models") for file in files)
    volumes = COMPOSE["volumes"]
    assert "./config:/config:ro" in volumes
    (volume,) = (v for v in POD["volumes"] if v["name"] == "config")
    (config,) = load("config", "kustomization.yaml")["configMapGenerator"]
    assert volume["configMap"]["name"] == config["name"]
    assert set(config["files"]) == {BATCHING, MODELS, MONITORING}
    for name in config["files"]:
        assert (DEPLOY / "config" / name).is_file()


def test_ports():
    assert COMPOSE["ports"] == [
        f"127.0.0.1:{port}:{port}" for port in (GRPC_PORT, REST_PORT)
    ]
    assert {p["name"]: p["containerPort"] for p in CONTAINER["ports"]} == {
        "grpc": GRPC_PORT,
        "rest": REST_PORT,
    }
    services = [m["spec"] for m in manifests() if m["kind"] == "Service"]
    exposed = {
        port["targetPort"]: (port["port"], service.get("clusterIP"))
        for service in services
        for port in service["ports"]
    }
    assert exposed == {"rest": (REST_PORT, None), "grpc": (GRPC_PORT, "None")}


def test_models_are_mounted_read_only():
    volumes = COMPOSE["volumes"]
    assert volumes and all(volume.endswith(":ro") for volume in volumes)
    mounts = {m["mountPath"]: m for m in CONTAINER["volumeMounts"]}
    assert mounts["/models"]["readOnly"] and mounts["/config"]["readOnly"]


def test_kubernetes_schemas():
    kinds = []
    for document in manifests():
        kubernetes_validate.validate(document, "1.37", strict=True)
        kinds.append(document["kind"])
    assert {"Deployment", "Service", "NetworkPolicy"} <= set(kinds)


def test_every_selector_finds_the_pods():
    for document in manifests():
        spec = document["spec"]
        selector = spec.get("selector") or spec.get("podSelector")
        if selector:
            assert selector.get("matchLabels", selector) == LABELS
    scaled = manifest("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert scaled["name"] == manifest("Deployment")["metadata"]["name"]


def test_requests_end_before_a_pod_does():
    word, seconds = CONTAINER["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    rest_timeout = 30  # rest_api_timeout_in_ms by default, in seconds
    assert rest_timeout < int(seconds) < POD["terminationGracePeriodSeconds"]


def test_only_clients_and_prometheus_reach_the_ports():
    policy = manifest("NetworkPolicy")["spec"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    allowed = {}
    for rule in policy["ingress"]:
        ((peer,),) = [source.keys() for source in rule["from"]]
        allowed[peer] = {port["port"] for port in rule["ports"]}
    assert allowed == {
        "podSelector": {"grpc", "rest"},
        "namespaceSelector": {"rest"},
    }


@pytest.mark.parametrize("layer", ["base", "overlays/gpu"])
def test_rendered(layer):
    documents = {}
    for document in kubectl(KUBERNETES / layer):
        kubernetes_validate.validate(document, "1.37", strict=True)
        documents[document["kind"]] = document
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    gpu = layer == "overlays/gpu"
    assert server["image"].endswith("-gpu") == gpu
    assert ("nvidia.com/gpu" in server["resources"]["limits"]) == gpu
    assert ("HorizontalPodAutoscaler" in documents) != gpu
    mounted = {v.get("configMap", {}).get("name") for v in pod["volumes"]}
    assert documents["ConfigMap"]["metadata"]["name"] in mounted


def test_another_version_replaces_the_pods_one_at_a_time(tmp_path):
    shutil.copytree(DEPLOY, tmp_path, dirs_exist_ok=True)
    pods = []
    for versions in ("versions: 1", "versions: 2"):
        config = tmp_path / "config" / MODELS
        config.write_text(
            read("config", MODELS).replace("versions: 1", versions)
        )
        rendered = kubectl(tmp_path / "kubernetes" / "base")
        (deployment,) = (d for d in rendered if d["kind"] == "Deployment")
        pods.append(deployment["spec"]["template"])
    assert pods[0] != pods[1]
    spec = deployment["spec"]
    step = {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["strategy"]["rollingUpdate"] == step
    startup = CONTAINER["startupProbe"]
    slowest = startup["periodSeconds"] * startup["failureThreshold"]
    assert 60 <= spec["minReadySeconds"]
    assert spec["progressDeadlineSeconds"] > slowest + spec["minReadySeconds"]


def test_kubernetes_probes(server):
    (model,) = served_models().model_config_list.config
    for probe in ("startupProbe", "readinessProbe"):
        path = CONTAINER[probe]["httpGet"]["path"]
        for name, status in (("tiny", 200), ("absent", 404)):
            url = server.rest_url + path.replace(model.name, name)
            assert requests.get(url, timeout=30).status_code == status


def test_a_server_too_busy_to_answer_is_not_restarted(server):
    (probe,) = CONTAINER["livenessProbe"].keys() - {
        *("periodSeconds", "timeoutSeconds", "failureThreshold")
    }
    assert probe == "tcpSocket"
    port = urllib.parse.urlsplit(server.rest_url).port
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(requests.Timeout):
            requests.get(f"{server.rest_url}/v1/models/tiny", timeout=0.2)
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(("name", "healthy"), [("tiny", True), ("no", False)])
def test_compose_health_check(server, name, healthy):
    check = COMPOSE["healthcheck"]["test"]
    kind, *command = check
    assert kind == "CMD"
    port = urllib.parse.urlsplit(server.rest_url).port
    command[-1] = (
        command[-1].replace("$$", "$").replace(str(REST_PORT), str(port))
    )
    ended = subprocess.run(command, env={"MODEL_NAME": name}, timeout=30)
    assert (ended.returncode == 0) == healthy


def test_the_page_shows_a_request_that_is_answered(server):
    (body,) = re.findall(r"curl -d '(.*)'", read("README.md"))
    url = f"{server.rest_url}/v1/models/tiny:predict"
    answer = requests.post(url, json=json.loads(body), timeout=30)
    assert len(answer.json()["predictions"]) == 1
