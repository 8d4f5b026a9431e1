"""Files and words that are secret: who may read such a file, and what in a text looks like a password."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gdsdeploy.errors import GdsError
from gdsdeploy.host.io.atomic import exposure
from gdsdeploy.host.rootdir import open_file

#: Bytes of a secret at most.
_SIZE: Final = 64 * 1024


def read_private(path: Path, name: str, error: type[GdsError]) -> str:
    """The text of ``path``, which the setting ``name`` calls and only its owner may read; raises ``error``."""
    try:
        with open_file(str(path)) as file:
            status = os.fstat(file.fileno())
            exposed = exposure(str(path), status)
            # A pipe that another program writes to, or a terminal, would be waited for.
            text = file.read(_SIZE).decode() if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError) as caught:
        reason = caught.strerror if isinstance(caught, OSError) else "it isn't text"
        raise error(f"{name}: {path}: {reason}") from None
    if text is None:
        raise error(f"{name}: {path}: it isn't a regular file")
    if exposed:
        raise error(f"{name}: {path} {exposed[0]}", hint=f"Run: {exposed[1]}")
    return text


def read_secret(path: Path, name: str, error: type[GdsError]) -> str:
    """The one line of printable ASCII in ``path``, as :func:`read_private` reads it; raises ``error``."""
    secret = read_private(path, name, error).strip()
    if not secret or not secret.isprintable() or not secret.isascii():
        raise error(f"{name}: {path} holds no secret", hint="One line of printable ASCII")
    return secret


#: What stands for a secret.
REDACTED: Final = "[redacted]"

#: Words that name a secret wherever they are part of a name: ``AWS_SECRET_ACCESS_KEY``, ``client-key-data``.
_NAMED = (
    r"passw(?:or)?d|passphrase|passcode|secret|token|webhook|creds|credentials?|psk|client-key-data|bearer|cookie"
    r"|\w+_pass|\w+_pwd|(?:storage|ssh)pass|bindpw|rootpw|authtok|_jwt|_pat\b|dockerconfigjson|stringdata|chpasswd"
    r"|(?:api|access|private|pre-?shared|encryption|shared|auth|account|master|storage|signing_private|routing|service"
    r"|integration|certificate|activation|dhchap|ctrl|jwt)[_-]?key"
)
#: Words that do so only as a whole, right before an equals sign: options of mounts, parameters of addresses.
_SHORT = r"pass|pwd|pin-value|pin|sig|signature|sas|auth|authkey|code|x-amz-(?:signature|credential)|hmac"
#: Programs that take a secret behind an option of one letter, and their letters.
_PROGRAMS = (
    ("useradd|usermod|crane|regctl|sshpass|mysql|mysqldump|mysqladmin|mariadb|docker|podman|helm|oc|racadm", "p"),
    ("7z|unzip|skopeo|buildah|az|smbmap", "p"),
    ("ipmitool|ipmipower|ipmiconsole|bmc-config|snmpget|snmpwalk|zip", "[PpAX]"),
    ("curl|smbclient|rpcclient|net", "[uU]"),
    ("ldapsearch|ldapmodify|ldapadd|ldapwhoami", "w"),
    ("redis-cli|mosquitto_pub|mosquitto_sub", "[aP]"),
)

_QUOTED = (
    r"(?:'(?:[^'\n]|'')*'"  # of a shell, of YAML with its doubled quotes
    r'|"(?:[^"\\\n]|\\.)*"'
    r'|\\"(?:\\\\\\"|(?!\\").)*\\")'  # JSON in a JSON string
)
#: Bare letters; a bracket only within a word, where it closes nothing.
_BARE = r"(?:[^\s,;\"'}\]\\]|\\[^nrt\"]|[}\]](?=\w))"
_UNCLOSED = r"\\?[\"'][^\n]*"
_ENDING = r"(?:'[^'\n]*'|\"[^\"\n]*\")(?=\s|$)"
#: A value: what was masked before, quoted and bare parts as a shell joins them, or what is left of a line that was cut.
_VALUE = rf"(?:\[redacted\]|{_QUOTED}(?:{_QUOTED}|{_BARE}|\\')*|{_BARE}+(?:{_ENDING})?|{_UNCLOSED})"
#: Behind a colon, words follow each other up to the end of the line or of what encloses it.
_REST = rf"(?:\[redacted\]|{_QUOTED}(?:{_QUOTED}|\\')*|(?:{_BARE}|[ \t]|(?<=\w)[\"'](?=\w)|[,;](?=\S))+|{_UNCLOSED})"
#: The name in front of a value; CONFIG_… is the kernel's.
_NAME = rf"(?<![\w.-])(?!CONFIG_)[\w.-]{{0,100}}?(?:{_NAMED})[\w.-]{{0,60}}"
_CLOSE = r"(?:\\?[\"'])?"
#: A list or an object of JSON or YAML within its line.
_INLINE = r"(?:\[(?!redacted\])[^\[\]\n]*\]|\{[^{}\n]*\})"
#: Programs that read a password from their input.
_ASKING = r"(?:sudo|su|passwd|chpasswd|cryptsetup|kinit|docker|podman|helm|openssl|mokutil)\b"
#: A program that is given a name, and a value of it; a list of such pairs.
_BETWEEN = rf"{_CLOSE}(?:\s+-v\s+|[,\s]\s*{_CLOSE}value{_CLOSE}\s*[:=]\s*)"


def _pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(text, flags | re.IGNORECASE)


_PATTERNS: Final = (
    re.compile(r"(?s)(?P<secret>-----BEGIN [A-Z0-9 ]*PRIVATE KEY\b.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z -]*|\Z))"),
    # The rest of one whose begin was cut off.
    re.compile(r"\A(?P<secret>[^-]*(?:-(?!----BEGIN )[^-]*)*?-----END [A-Z0-9 ]*PRIVATE KEY[A-Z -]*)"),
    re.compile(r"(?s)(?P<secret>---- BEGIN SSH2 ENCRYPTED PRIVATE KEY\b.*?(?:---- END SSH2[A-Z0-9 ]* ----|\Z))"),
    re.compile(r"(?s)(?P<secret>-----BEGIN OpenVPN Static key\b.*?(?:-----END OpenVPN Static key[A-Z0-9 -]*|\Z))"),
    re.compile(r"Private-Lines: \d+\s+(?P<secret>(?:[A-Za-z0-9+/]+=*\s+)+Private-MAC: \w+)"),
    re.compile(r"\$ANSIBLE_VAULT;[\w.;]+\s+(?P<secret>\w+(?:\s+[0-9a-f]{10,}\b)*)"),
    # Everything before the last @ of an address' host.
    re.compile(r"://(?P<secret>[^/\s\"'<>?#]+)@"),
    _pattern(r"(?P<secret>https?://(?:hooks\.slack(?:-gov)?\.com|[\w.-]+\.webhook\.office\.com|[\w.-]+\.logic\.azure\.com"
             r"|[\w.-]+\.powerplatform\.com|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|chat\.googleapis\.com"
             r"|api\.telegram\.org|events\.pagerduty\.com|[\w.-]+(?::\d+)?/hooks)(?=[:/?])[^\s\"'<>\\,;)\]}]*)"),
    re.compile(r"(?<![\w/@.:-])[\w.-]{1,100}:(?P<secret>[^\s:@/]{1,200})@[\w.-]+:\d"),
    _pattern(r"%3A%2F%2F(?P<secret>[\w.%-]{1,300}?)%40"),
    # Headers; a bearer's token wherever it stands.
    _pattern(rf"(?<![\w-])(?:proxy-)?authorization{_CLOSE}\s*[:=]\s*[\"']?"
             r"(?P<secret>\[redacted\]|[^\r\n\"'\\]+(?:\r?\n[ \t]+[^\r\n\"'\\]+)*)"),
    _pattern(rf"(?<![\w-])(?:(?:set-)?cookie|x-[\w-]*(?:auth|token|key)[\w-]*){_CLOSE}\s*:\s*[\"']?(?P<secret>\[redacted\]|[^\r\n\"'\\]+)"),
    _pattern(r"\b(?:bearer|basic)\s+(?P<secret>[A-Za-z0-9+/_.=~-]{8,})"),
    # Names with a value behind them: on further lines, in brackets, beside the name of what it is, between tags.
    _pattern(
        rf"(?m)^(?P<indent>[ \t]*)(?:- )?[\"']?{_NAME}{_CLOSE}:[ \t]*(?:[|>][+\d-]*[ \t]*)?\r?\n"
        r"(?P<secret>(?:(?P=indent)(?:[ \t]+|- )\S[^\n]*(?:\n|\Z))+)"
    ),
    _pattern(rf"{_NAME}{_CLOSE}\s*[:=]\s*(?P<secret>{_INLINE})"),
    _pattern(rf"{_NAME}{_BETWEEN}(?P<secret>{_VALUE})"),
    _pattern(rf"{_NAME}\\?[\"']\s*:\s*\n\s*(?P<secret>{_QUOTED})"),
    _pattern(rf"<{_NAME}>(?P<secret>[^<\n]+)<"),
    _pattern(r"\\?[\"']auth\\?[\"']\s*:\s*(?P<secret>" + _QUOTED + ")"),
    _pattern(rf"{_NAME}(?:=|\s)\s*\\\r?\n\s*(?P<secret>{_VALUE})"),
    _pattern(r"(?m)^[ \t]*(?:passw(?:or)?d|bindpw|rootpw(?:\s+--\w+)*|r[ow]community6?)[ \t]+"
             r"(?P<secret>[^\s:=]+)(?:\s+default)?\s*$"),
    _pattern(r"\bpassw(?:or)?d(?:-again)?\s+password\s+(?P<secret>\S+)"),
    _pattern(r"\bpassw(?:or)?d\s+(?:(?:is|was)\s+)?(?P<secret>'[^'\n]+'|\"[^\"\n]+\")"),
    _pattern(r"[?&]key=(?P<secret>[^\s&\"'<>]+)"),
    _pattern(rf"{_NAME}{_CLOSE}\s*=>?\s*(?P<secret>{_VALUE})"),
    _pattern(rf"{_NAME}{_CLOSE}\s*:[ \t]*(?:[|>][+-]?[ \t]*\n\s+)?(?P<secret>{_REST})"),
    _pattern(rf"(?<![\w.-])_?(?:{_SHORT})=(?P<secret>{_VALUE})"),
    re.compile(rf"(?<![\w.-])(?!CONFIG_)[A-Z0-9_]{{1,100}}_(?:KEY|PW|PASS|SAS|PAT)=(?P<secret>{_VALUE})"),
    # Ceph's and WireGuard's, openssl's, .netrc's.
    re.compile(r"(?im)(?<![\w.-])key\s*[:=]\s*(?P<secret>[A-Za-z0-9+/]{20,}={0,2})(?![\w:.-])"),
    re.compile(r"(?<![\w.-])pass:(?P<secret>\S+)"),
    _pattern(r"\blogin\s+\S+\s+(?:account\s+\S+\s+)?password\s+(?P<secret>\S+)"),
    # Options and inputs of programs.
    _pattern(r"(?<![\w-])--?(?:proxy-)?user[ =](?P<secret>[^\s:]+:\S+)"),
    _pattern(r"\buser(?:name)?=[^\s,%]{0,100}%(?P<secret>[^\s,]+)"),
    re.compile(rf"\b(?:ceph|rados|rbd|ceph-fuse)\b[^\n|;&]{{0,300}}?\s--key[ =](?P<secret>{_VALUE})"),
    re.compile(rf"\b(?:echo|printf)\s+(?:-\w+\s+)*(?P<secret>{_VALUE})\s*\|\s*{_ASKING}"),
    re.compile(rf"\b{_ASKING}[^\n|;&<]{{0,200}}<<<\s*(?P<secret>{_VALUE})"),
    re.compile(r"\b(?:(?:pro|ua)\s+attach|weka\s+user\s+login\s+\S+|SUSEConnect\s+-r|wpa_passphrase\s+\S+)"
               r"\s+(?P<secret>[^\s-]\S*)"),
    _pattern(rf"(?<![\w-])--?[\w-]{{0,60}}?(?:{_NAMED}|pass|pwd)\s+(?!-)(?P<secret>{_VALUE})"),
    *(
        re.compile(rf"(?<![\w-])(?:{names})\b[^\n|;&]{{0,300}}?\s-{letter}[ =]?(?P<secret>{_VALUE})")
        for names, letter in _PROGRAMS
    ),
    # What is known by its form alone.
    re.compile(r"(?<![A-Za-z0-9])(?P<secret>(?:AKIA|ASIA)[A-Z0-9]{16})(?![A-Za-z0-9])"),
    re.compile(r"(?<![\w-])(?P<secret>eyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)*)"),
    re.compile(
        r"(?<![\w-])(?P<secret>gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{8,}|nvapi-[\w-]{16,}"
        r"|hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|AIza[\w-]{30,}|pypi-[\w-]{20,}|dop_v1_\w{20,}|hvs\.[\w-]{16,}|gl(?:rt|dt|cbt|ptt|ft)-[\w-]{16,}|xapp-[\w-]{8,}"
        r"|ya29\.[\w-]{16,}|[sr]k_(?:live|test)_\w{16,}|SG\.[\w-]{16,}\.[\w-]{8,}|AGE-SECRET-KEY-1\w{8,})"
    ),
    # Of NVMe over fabrics, munge and GRUB.
    re.compile(r"(?<![\w-])(?P<secret>(?:DHHC-1|NVMeTLSkey-1):\d\d:[A-Za-z0-9+/=]+:?|MUNGE:[A-Za-z0-9+/=]{8,}:?)"),
    re.compile(r"(?P<secret>grub\.pbkdf2\.sha512\.[\w.]+)"),
    re.compile(r"(?P<secret>\$(?:1|2[aby]|5|6|7|y|gy)\$[./A-Za-z0-9$=,-]{8,})"),
)  # fmt: skip
#: Patterns that need a word that names a secret; a text without one needs none of them, which saves most of the time.
_BY_NAME: Final = frozenset(pattern for pattern in _PATTERNS if _NAME in pattern.pattern)
_ANY_NAME: Final = _pattern(_NAMED.replace(r"\w+_", "_"))
#: A key of a mapping whose value is a secret whatever it is.
_KEY = _pattern(rf"[\w.-]*?(?:{_NAMED})(?:s|[_-]?data)?|pass|pwd|auth|authorization")


def hide(text: str, on_secret: Callable[[], object]) -> str:
    """``text`` with REDACTED for each secret; ``on_secret`` is called once for each that was not masked before."""

    def masked(match: re.Match[str]) -> str:
        if match["secret"].strip("\\\"'") != REDACTED:
            on_secret()
        begin, end = match.span("secret")
        return f"{match.string[match.start() : begin]}{_quoted_as(match['secret'])}{match.string[end : match.end()]}"

    named = _ANY_NAME.search(text) is not None
    for pattern in _PATTERNS:
        if named or pattern not in _BY_NAME:
            text = pattern.sub(masked, text)
    return text


def names_secret(key: str) -> bool:
    """Whether the value that a mapping has for ``key`` is a secret."""
    return _KEY.fullmatch(key) is not None


def _quoted_as(secret: str) -> str:
    """REDACTED in the quotes of what it replaces, so that JSON and YAML stay what they are."""
    if secret.endswith("\n"):
        # Lines below a key: their indentation makes them its value.
        return f"{secret[: len(secret) - len(secret.lstrip())]}{REDACTED}\n"
    if secret[0] in "[{" and secret != REDACTED:
        quote = next((mark for mark in ('\\"', '"', "'") if mark in secret), "")
    else:
        quote = next((mark for mark in ('\\"', '"', "'") if secret.startswith(mark) and secret.endswith(mark)), "")
    return f"{quote}{REDACTED}{quote}"
