"""What the suites share that run others' tests of Open vSwitch: an ovs-vswitchd on Hyper-Switch's data plane, or on its own datapath
in user space to compare with, in namespaces of its own, and a report."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATAPATHS = ("hyperswitch", "openvswitch")
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


def parser(description, name):
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--program", type=Path, default=ROOT / "target/release/hyperswitch", help="[default: %(default)s]")
    options.add_argument("--output", type=Path, default=ROOT / "build" / name, help="[default: %(default)s]")
    options.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return options


def enter_environment(name, packages):
    """Goes on in a virtual environment that has these packages of PyPI."""
    place = ROOT / "build" / name
    python = place / "bin/python"
    mark = place / "-".join(packages)
    if not mark.exists():
        run(sys.executable, "-m", "venv", "--clear", place)
        run(python, "-m", "pip", "install", "--quiet", *packages)
        mark.touch()
    if Path(sys.executable) != python:
        os.execv(python, [python, *sys.argv])


def enter_namespaces(options):
    """Network namespaces that are made and named later disappear with this process, and do not meet the machine's."""
    if not options.inside:
        words = ["unshare", "--net", "--mount", sys.executable, *sys.argv, "--inside"]
        os.execvp(words[0], words)
    os.makedirs("/run/netns", exist_ok=True)
    run("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    run("ip", "link", "set", "lo", "up")
    options.program = options.program.resolve()
    options.output = options.output.resolve()
    options.output.mkdir(parents=True, exist_ok=True)


class Switch:
    """ovs-vswitchd and its database, in a directory of their own."""

    def __init__(self, options, datapath="hyperswitch", configuration=""):
        self.options = options
        self.datapath = datapath
        # What the table [ovs] has besides.
        self.configuration = configuration
        self.place = Path(tempfile.mkdtemp(prefix="hs-suite-"))
        self.run_dir = self.place / "run"
        self.database = self.run_dir / "openvswitch"
        # Of bridges.
        self.kind = "system" if datapath == "hyperswitch" else "netdev"
        self.children = []

    def __enter__(self):
        try:
            self.start_ours() if self.datapath == "hyperswitch" else self.start_theirs()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start_ours(self):
        configuration = self.place / "hyperswitch.toml"
        configuration.write_text(f"[ovs]\nenabled = true\n{self.configuration}")
        program, run_dir = self.options.program, ["--run-dir", self.run_dir]
        self.start("hyperswitch", program, "run", "--config", configuration, *run_dir)
        wait(lambda: quiet(program, "status", *run_dir), "hyperswitch")
        wait(lambda: quiet(program, "ovs", "start", *run_dir), "ovs-vswitchd")

    def start_theirs(self):
        self.database.mkdir(parents=True)
        run("ovsdb-tool", "create", self.database / "conf.db", SCHEMA)
        remote = f"unix:{self.database}/db.sock"
        usual = ["--no-chdir", "--pidfile", "--log-file", "--verbose=console:off"]
        self.start("ovsdb-server", "ovsdb-server", self.database / "conf.db", f"--remote=p{remote}", *usual)
        wait(lambda: quiet("ovs-vsctl", "--no-wait", "init", env=self.environment()), "ovsdb-server")
        self.start("ovs-vswitchd", "ovs-vswitchd", remote, *usual)

    def start(self, name, *words):
        """Starts a program that is ended with the others; what it says goes to a file of this name."""
        with open(self.options.output / f"{self.datapath}-{name}.out", "w") as log:
            child = subprocess.Popen([str(word) for word in words], env=self.environment(), stdout=log, stderr=log)
        self.children.append(child)
        return child

    def environment(self):
        places = [f"{project}_{name}DIR" for project in ("OVS", "OVN") for name in ("RUN", "LOG", "DB")]
        return os.environ | {name: str(self.database) for name in places}

    def ask(self, *words, **more):
        """What one of Open vSwitch's programs says."""
        return ask(*words, env=self.environment(), **more)

    def stop(self):
        if self.datapath == "hyperswitch":
            # While its switch runs: without it, ovs-vswitchd is started again and again.
            quiet(self.options.program, "ovs", "stop", "--run-dir", self.run_dir)
        for child in reversed(self.children):
            child.terminate()
        for child in self.children:
            child.wait()
        for log in self.database.glob("*.log"):
            shutil.copy(log, self.options.output / f"{self.datapath}-{log.name}")
        shutil.rmtree(self.place, ignore_errors=True)


def words_of(words):
    return [str(word) for word in words]


def run(*words, **more):
    subprocess.run(words_of(words), check=True, stdout=subprocess.DEVNULL, **more)


def ask(*words, **more):
    return subprocess.run(words_of(words), check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def quiet(*words, **more):
    return subprocess.run(words_of(words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more).returncode == 0


def wait(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what} does not start")
        time.sleep(0.1)
