"""What sslyze finds at a TLS listener of the gateway, finding by finding.

python scan.py PORT AUTHORITY      prints "ok NAME" or "FAIL NAME: why" for each
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sslyze import (
    CertificateInfoExtraArgument,
    ScanCommand,
    ScanCommandAttemptStatusEnum,
    ScanCommandsExtraArguments,
    Scanner,
    ServerNetworkLocation,
    ServerScanRequest,
)

OLD = ["ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"]
# Forward secrecy and authenticated encryption: everything else is weak today.
STRONG = ("AES_128_GCM", "AES_256_GCM", "CHACHA20_POLY1305")


def scan(port: int, authority: Path) -> Any:
    location = ServerNetworkLocation(hostname="localhost", port=port, ip_address="127.0.0.1")
    arguments = ScanCommandsExtraArguments(certificate_info=CertificateInfoExtraArgument(custom_ca_file=authority))
    commands = {command for command in ScanCommand if command is not ScanCommand.HTTP_HEADERS}
    scanner = Scanner()
    scanner.queue_scans([ServerScanRequest(location, scan_commands=commands, scan_commands_extra_arguments=arguments)])
    (result,) = scanner.get_results()
    if result.scan_result is None:
        raise RuntimeError(f"no connection: {result.connectivity_error_trace}")
    return result.scan_result


def attempts(found: Any, name: str) -> Any:
    attempt = getattr(found, name)
    assert attempt.status is ScanCommandAttemptStatusEnum.COMPLETED, f"{name} did not end: {attempt.error_reason}"
    return attempt.result


def suites(found: Any, version: str) -> list[str]:
    return [accepted.cipher_suite.name for accepted in attempts(found, f"{version}_cipher_suites").accepted_cipher_suites]


def old_versions(found: Any) -> None:
    for version in OLD:
        assert not suites(found, version), f"{version} is spoken: {suites(found, version)}"


def strong_suites(found: Any) -> None:
    for version in ["tls_1_2", "tls_1_3"]:
        accepted = suites(found, version)
        assert accepted, f"{version} is not spoken"
        for suite in accepted:
            assert any(strong in suite for strong in STRONG), f"{suite} is weak"
            assert version == "tls_1_3" or suite.startswith("TLS_ECDHE_"), f"{suite} has no forward secrecy"


def chain(found: Any) -> None:
    info = attempts(found, "certificate_info")
    for deployment in info.certificate_deployments:
        # The authority of this test is the one that was given last; the public ones do not know it.
        validated = [path for path in deployment.path_validation_results if path.was_validation_successful]
        assert validated, "no trust store validates the chain"
        assert deployment.received_chain_has_valid_order, "the chain is out of order"
        assert not deployment.verified_chain_has_sha1_signature, "SHA-1 in the chain"


def renegotiation(found: Any) -> None:
    result = attempts(found, "session_renegotiation")
    assert not result.is_vulnerable_to_client_renegotiation_dos, "a client may renegotiate"
    assert result.supports_secure_renegotiation, "renegotiation is not marked as secure"


def robot(found: Any) -> None:
    result = attempts(found, "robot").robot_result
    assert result.name.startswith("NOT_VULNERABLE"), result


def flag(command: str, name: str, expected: bool = False) -> Callable[[Any], None]:
    def check(found: Any) -> None:
        value = getattr(attempts(found, command), name)
        assert value is expected, f"{name} is {value}"

    return check


CHECKS: dict[str, Callable[[Any], None]] = {
    "old-versions": old_versions,
    "strong-suites": strong_suites,
    "chain": chain,
    "renegotiation": renegotiation,
    "compression": flag("tls_compression", "supports_compression"),
    "heartbleed": flag("heartbleed", "is_vulnerable_to_heartbleed"),
    "robot": robot,
    "extended-master-secret": flag("tls_extended_master_secret", "supports_ems_extension", expected=True),
    "ccs-injection": flag("openssl_ccs_injection", "is_vulnerable_to_ccs_injection"),
    "early-data": flag("tls_1_3_early_data", "supports_early_data"),
}


def main() -> None:
    port, authority = int(sys.argv[1]), Path(sys.argv[2])
    found = scan(port, authority)
    failed = 0
    for name, check in CHECKS.items():
        try:
            check(found)
            print(f"ok {name}")
        except AssertionError as error:
            failed += 1
            print(f"FAIL {name}: {error}")
    sys.exit(1 if failed else 0)


main()
