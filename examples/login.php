<?php
// A login limiter: five tries in any minute from one address, with one plain `increment`.
//
//     apt install php-cli php-memcached
//     tollgate --limits examples/limits.toml
//     php examples/login.php [host:port]

const TRIES = 5;
[$host, $port] = explode(":", $argv[1] ?? "127.0.0.1:11211");
// The name is the pool: a process of PHP-FPM keeps such a connection for its next requests.
$cache = new Memcached("limits");
$cache->setOption(Memcached::OPT_BINARY_PROTOCOL, false);
$cache->setOption(Memcached::OPT_TCP_NODELAY, true);
// What a request may lose while the server is gone: milliseconds, and microseconds for the next two.
$cache->setOption(Memcached::OPT_CONNECT_TIMEOUT, 1000);
$cache->setOption(Memcached::OPT_SEND_TIMEOUT, 1_000_000);
$cache->setOption(Memcached::OPT_RECV_TIMEOUT, 1_000_000);
$cache->setOption(Memcached::OPT_POLL_TIMEOUT, 1000);
if (!$cache->getServerList()) {
    $cache->addServer($host, (int) $port);
}

function may_try(string $ip): bool
{
    global $cache;
    $used = $cache->increment("login:$ip");
    // No answer is a refusal: who guesses passwords must not gain by breaking the limiter.
    return $used !== false && $used <= TRIES;
}

function check(string $what, bool $holds): void
{
    if (!$holds) {
        fwrite(STDERR, "not so: $what\n");
        exit(1);
    }
    echo "$what\n";
}

// So that this can be run again within the minute.
$cache->delete("login:198.51.100.4");

$answers = [];
for ($try = 1; $try <= 7; $try++) {
    $answers[] = may_try("198.51.100.4") ? "try" : "wait";
}
check("198.51.100.4: " . implode(" ", $answers), $answers === [...array_fill(0, 5, "try"), "wait", "wait"]);

$wait = (int) ceil($cache->get("login:198.51.100.4#retry") / 1000);
check("Retry-After: $wait", $wait > 50 && $wait <= 65);

// Whoever gets in starts anew.
$cache->delete("login:198.51.100.4");
check("198.51.100.4, after a success: try", may_try("198.51.100.4"));
check("203.0.113.66, blocked: wait", !may_try("203.0.113.66"));
