"""The CPU quota of a container, read from a made-up tree of control groups."""

import pytest
from draft_helpers import write_draft

from ssd.model.draft import Draft
from ssd.model.tokenizer import Tokenizer
from ssd.runtime import LLM
from ssd.runtime.devices.cpu_quota import cpu_quota
from ssd.runtime.devices.threads import ALLOWED, default_cores
from ssd.runtime.sync.speculator import SyncSpeculator


def tree(root, cgroup, **files):
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return cpu_quota(root)


def version_1(group, quota, period):
    values = {"quota": quota, "period": period}
    return {f"sys/fs/cgroup/{group}/cpu.cfs_{name}_us": f"{value}\n" for name, value in values.items()}


V1 = "9:name=systemd:/\n4:memory:/a\n1:cpu,cpuacct:/docker/x\n"


@pytest.mark.parametrize(
    "cgroup,files,quota",
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"sys/fs/cgroup/cpu.max": "max 100", "sys/fs/cgroup/a/cpu.max": "50 100"}, 0.5),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "400 100", "sys/fs/cgroup/a/b/cpu.max": "300 100"}, 3.0),
        ("0::/../out\n", {"sys/fs/cgroup/cpu.max": "200000 100000"}, 2.0),
        ("0::/a\n", {"sys/fs/cgroup/unified/a/cpu.max": "200000 100000"}, 2.0),
        (V1, version_1("cpu,cpuacct/docker/x", 9, 4), 2.25),
        (V1, version_1("cpu", 1000, 1000), 1.0),
        (V1, version_1("cpu/docker", -1, 1000), None),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "rubbish"}, None),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "100 0"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_the_least_quota_on_the_way_up(tmp_path, cgroup, files, quota):
    assert tree(tmp_path, cgroup, **files) == quota


def test_files_that_cannot_be_read_are_no_quota(tmp_path):
    assert cpu_quota(tmp_path) is None
    (tmp_path / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    assert tree(tmp_path, "0::/\n") is None


def test_a_core_for_each_core_of_time():
    assert default_cores((0, 3, 5), None) == default_cores((0, 3, 5), 2.5) == (0, 3, 5)
    assert default_cores((0, 3, 5), 1.5) == (-1, -1)
    assert default_cores((0, 3, 5), 1.0) == default_cores((0, 1), 0.1) == (-1,)


@pytest.mark.skipif(len(ALLOWED) < 2, reason="wants two cores")
def test_a_quota_of_one_core_decodes_as_on_one_core(monkeypatch, tiny_folder, tiny_target, tmp_path):
    for module in ("devices.threads", "devices.bandwidth", "factory"):
        monkeypatch.setattr(f"ssd.runtime.{module}.CORES", (-1,))
    draft = Draft.load(write_draft(tmp_path / "d", depth=1), tiny_target, "bf16")

    def made(**options):
        return LLM.from_model(tiny_target, Tokenizer(tiny_folder), draft=draft, **options).engine

    assert made(mode="ar").placement.cores == [-1]
    assert made(mode="ar", threads=2).placement.cores == [-1, -1]  # what is asked for is given
    assert isinstance(made(mode="auto").speculator, SyncSpeculator)
    lanes = made(mode="ssd")
    assert lanes.placement.cores == lanes.speculator.lane.runner.placement.cores == [-1]
    lanes.speculator.close()
