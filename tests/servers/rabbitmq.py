"""A RabbitMQ with a home, a node name and an epmd of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.servers.process import ServerProcess, free_port
from tests.waiting import PATIENCE

BINARY = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = BINARY.with_name("rabbitmqctl")


class RabbitMQ(ServerProcess):
    """`url` is that of the default virtual host, user guest."""

    def __init__(self, configuration: str = "") -> None:
        if not BINARY.exists():
            raise RuntimeError("RabbitMQ is not installed: run tools/install_servers.py")
        epmd, distribution = free_port(), free_port()

        def environment(folder: Path, port: int) -> dict[str, str]:
            (folder / "rabbitmq.conf").write_text("loopback_users.guest = true\n" + configuration)
            (folder / "enabled_plugins").write_text("[].")
            (folder / "env.conf").write_text("")
            return {
                "HOME": str(folder),
                "RABBITMQ_NODENAME": f"test{port}@localhost",
                "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODE_PORT": str(port),
                "RABBITMQ_DIST_PORT": str(distribution),
                "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
                "RABBITMQ_LOG_BASE": str(folder / "log"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
                "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
                "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
                "RABBITMQ_PID_FILE": str(folder / "pid"),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
                "ERL_EPMD_ADDRESS": "127.0.0.1",
                "ERL_EPMD_PORT": str(epmd),
            }

        self._epmd = epmd
        self._given = environment
        super().__init__("rabbitmq", lambda folder, port: [str(BINARY)], environment=environment)

    def stop(self) -> None:
        """End it, and the port mapper that it left behind."""
        super().stop()
        environment = {**os.environ, "ERL_EPMD_PORT": str(self._epmd), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, check=False)

    def control(self, *words: str) -> None:
        """Carry out a command of rabbitmqctl."""
        environment = {**os.environ, **self._given(self.folder, self.port)}
        done = subprocess.run(
            [CONTROL, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"
