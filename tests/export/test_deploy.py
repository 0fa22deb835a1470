"""The deployment files: by schema, by message, and against each other."""

import inspect
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys

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

from export import client, messages
from export.stand_in import core

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
    embed = inspect.signature(client.Client.embed).parameters
    assert embed["batch_size"].default == config.max_batch_size.value
    for flags in commands():
        for flag in ("rest_api_num_threads", "grpc_max_threads"):
            assert int(flags[flag]) == 2 * config.max_batch_size.value


def test_metrics_are_scraped():
    config = parse(MONITORING, "MonitoringConfig")
    assert config.prometheus_config.enable
    assert config.prometheus_config.path == SCRAPED["metrics_path"]
    assert SCRAPED["static_configs"] == [{"targets": [f"server:{REST_PORT}"]}]
    monitor = load("kubernetes", "pod_monitor.yaml")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert monitor["selector"]["matchLabels"] == LABELS
    assert LABELS[monitor["jobLabel"]] == SCRAPED["job_name"]
    assert endpoint["path"] == SCRAPED["metrics_path"]
    assert endpoint["port"] in {p["name"] for p in CONTAINER["ports"]}


def test_versions_and_labels(half_plus):
    config = served_models()
    (model,) = config.model_config_list.config
    assert model.base_path == f"/models/{model.name}"
    model.base_path = str(half_plus)
    models = core.Core(labels_for_unavailable=True)
    for label, version in (("stable", 1), ("canary", 2)):
        # The page adds the second version, and its label.
        model.model_version_policy.specific.versions[version - 1 :] = [version]
        model.version_labels[label] = version
        models.configure(config)
        models.refresh()
        spec = messages.predict_pb2.PredictRequest().model_spec
        spec.name, spec.version_label = model.name, label
        with models.use(spec) as (number, _):
            assert number == version
    models.close()


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


def test_alerts():
    named = set(
        re.findall(r"^\| `(:\S+)` ", read("../../docs/deploy.md"), re.MULTILINE)
    )
    for rule in ALERTS["rules"]:
        used = set(re.findall(r"(:[a-z_:]+)[{[]", rule["expr"]))
        assert {name.removesuffix("_bucket") for name in used} <= named
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        jobs = re.findall(r'job="([^"]*)"', rule["expr"])
        assert set(jobs) <= {SCRAPED["job_name"]}
    assert load("config", "prometheus.yml")["rule_files"] == ["alerts.yml"]
    # The page makes a custom resource of them.
    (command,) = re.findall(
        r"^\((printf.*)\) \|", read("../../docs/deploy.md"), re.M
    )
    written = subprocess.check_output(["sh", "-c", command], cwd=DEPLOY)
    rule = yaml.safe_load(written)
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"] == load("config", "alerts.yml")


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
        for text in re.findall(r"`(--[^`]*)`", read("../../docs/deploy.md"))
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
    assert all(volume.endswith(":ro") for volume in volumes)
    mounts = {m["mountPath"]: m for m in CONTAINER["volumeMounts"]}
    assert mounts["/models"]["readOnly"] and mounts["/config"]["readOnly"]
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


def test_kubernetes_manifests():
    for document in manifests():
        kubernetes_validate.validate(document, "1.37", strict=True)
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
    spec = manifest("Deployment")["spec"]
    step = {"maxSurge": 1, "maxUnavailable": 0}
    assert spec["strategy"]["rollingUpdate"] == step
    startup = CONTAINER["startupProbe"]
    slowest = startup["periodSeconds"] * startup["failureThreshold"]
    assert 60 <= spec["minReadySeconds"]
    assert spec["progressDeadlineSeconds"] > slowest + spec["minReadySeconds"]
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


@pytest.mark.parametrize(("name", "healthy"), [("tiny", True), ("no", False)])
def test_probes(server, name, healthy):
    (model,) = served_models().model_config_list.config
    for probe in ("startupProbe", "readinessProbe"):
        path = CONTAINER[probe]["httpGet"]["path"]
        url = server.rest_url + path.replace(model.name, name)
        status = requests.get(url, timeout=30).status_code
        assert status == (200 if healthy else 404)
    kind, *command = COMPOSE["healthcheck"]["test"]
    assert kind == "CMD"
    port = server.rest_url.rpartition(":")[2]
    check = command[-1].replace("$$", "$").replace(str(REST_PORT), port)
    ended = subprocess.run(
        [*command[:-1], check], env={"MODEL_NAME": name}, timeout=30
    )
    assert (ended.returncode == 0) == healthy


def test_a_server_too_busy_to_answer_is_not_restarted(server):
    (probe,) = CONTAINER["livenessProbe"].keys() - {
        *("periodSeconds", "timeoutSeconds", "failureThreshold")
    }
    assert probe == "tcpSocket"
    port = int(server.rest_url.rpartition(":")[2])
    server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(requests.Timeout):
            requests.get(f"{server.rest_url}/v1/models/tiny", timeout=0.2)
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    finally:
        server.process.send_signal(signal.SIGCONT)


def test_the_page_shows_a_request_that_is_answered(server):
    (body,) = re.findall(r"curl -d '(.*)'", read("../../docs/deploy.md"))
    url = f"{server.rest_url}/v1/models/tiny:predict"
    answer = requests.post(url, json=json.loads(body), timeout=30)
    assert len(answer.json()["predictions"]) == 1
