"""sshd in two network namespaces, which are two machines to the programs in them."""

from tools.engines.protocol import Engine

engine = Engine(
    name="ssh",
    purpose="launches over two machines: sshd in two network namespaces",
    tests=("integration-tests/test_network_namespace.py", "integration-tests/test_several_machines.py"),
    debian=("iproute2", "openssh-client", "openssh-server"),
    needs_root=True,
)
