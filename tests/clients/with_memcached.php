<?php
// php-memcached, libmemcached from PHP: types in the client flags, and sessions locked with `add`.

[, $host, $port] = $argv;
const KEYS = 500;

function short(mixed $value): string
{
    $text = json_encode($value, JSON_PARTIAL_OUTPUT_ON_ERROR);
    return strlen($text) <= 300 ? $text : substr($text, 0, 300) . "... (" . strlen($text) . " characters)";
}

function equal(string $what, mixed $found, mixed $expected): void
{
    if ($found !== $expected) {
        fwrite(STDERR, "$what: expected " . short($expected) . ", found " . short($found) . "\n");
        exit(1);
    }
}

function client(array $options = []): Memcached
{
    global $host, $port;
    $client = new Memcached();
    $client->setOptions($options + [
        Memcached::OPT_BINARY_PROTOCOL => false,
        Memcached::OPT_COMPRESSION => false,
        Memcached::OPT_TCP_NODELAY => true,
    ]);
    $client->addServer($host, (int) $port);
    return $client;
}

function storing(Memcached $c): void
{
    foreach (["text", "", 7, 2 ** 40, 1.5, true, false, ["a" => [1]]] as $value) {
        equal("set", $c->set("k", $value), true);
        equal("get", $c->get("k"), $value);
    }
    equal("get of nothing", $c->get("nothing"), false);
    equal("its code", $c->getResultCode(), Memcached::RES_NOTFOUND);
    equal("set", $c->set("k", "v"), true);
    equal("add over", $c->add("k", "w"), false);
    equal("its code", $c->getResultCode(), Memcached::RES_NOTSTORED);
    equal("add", $c->add("added", "w"), true);
    equal("replace", $c->replace("k", "x"), true);
    equal("replace of nothing", $c->replace("nothing", "x"), false);
    equal("append", $c->append("k", "-end"), true);
    equal("prepend", $c->prepend("k", "start-"), true);
    equal("append to nothing", $c->append("nothing", "x"), false);
    $found = $c->get("k", null, Memcached::GET_EXTENDED);
    equal("append, prepend", $found["value"], "start-x-end");
    equal("cas", $c->cas($found["cas"], "k", "new"), true);
    equal("cas again", $c->cas($found["cas"], "k", "newer"), false);
    equal("its code", $c->getResultCode(), Memcached::RES_DATA_EXISTS);
    equal("cas of nothing", $c->cas($found["cas"], "nothing", "newer"), false);
    equal("its code", $c->getResultCode(), Memcached::RES_NOTFOUND);
    equal("what cas left", $c->get("k"), "new");
    equal("delete", $c->delete("k"), true);
    equal("delete again", $c->delete("k"), false);
    equal("its code", $c->getResultCode(), Memcached::RES_NOTFOUND);
}

function sizes(Memcached $c): void
{
    // The first fits the default maximum of 1 MiB for an item with its key; the other does not.
    $large = str_repeat("l", 1_000_000);
    equal("set of a large value", $c->set("large", $large), true);
    equal("get of a large value", $c->get("large"), $large);
    equal("set of a too large value", $c->set("large", str_repeat("t", 2_000_000)), false);
    equal("its code", $c->getResultCode(), Memcached::RES_E2BIG);
    equal("after a too large value", $c->get("large"), false);
    equal("a key of 250 bytes", $c->set(str_repeat("k", 250), "ü"), true);
    equal("get of a key of 250 bytes", $c->get(str_repeat("k", 250)), "ü");
}

function multiGet(Memcached $c): void
{
    $items = [];
    for ($n = 0; $n < KEYS; $n++) {
        $items["multi:$n"] = $n;
    }
    $keys = array_keys($items);
    equal("setMulti", $c->setMulti($items), true);
    equal("getMulti", $c->getMulti([...$keys, "nothing"]), $items);
    $found = $c->getMulti([...$keys, "nothing"], Memcached::GET_EXTENDED);
    equal("uniques are unique", count(array_unique(array_column($found, "cas"))), KEYS);
    equal("getDelayed", $c->getDelayed($keys, true), true);
    equal("fetchAll", array_column($c->fetchAll(), "value", "key"), $items);
    equal("deleteMulti", array_unique(array_values($c->deleteMulti($keys))), [true]);
    equal("after deleteMulti", $c->getMulti($keys), []);
}

function counters(Memcached $c): void
{
    equal("increment of nothing", $c->increment("n"), false);
    equal("its code", $c->getResultCode(), Memcached::RES_NOTFOUND);
    equal("decrement of nothing", $c->decrement("n"), false);
    $c->set("n", 10);
    equal("increment", $c->increment("n", 32), 42);
    equal("decrement", $c->decrement("n", 2), 40);
    equal("decrement stops at zero", $c->decrement("n", 100), 0);
    equal("a counter keeps its type", $c->get("n"), 0);
    $c->set("n", "words");
    equal("increment of words", $c->increment("n"), false);
    equal("after an error", $c->get("n"), "words");
}

function expiry(Memcached $c): void
{
    $c->set("touched", "v", 2);
    equal("touch", $c->touch("touched", 100), true);
    equal("touch of nothing", $c->touch("nothing", 100), false);
    $c->set("month", "v", 60 * 60 * 24 * 30);
    $c->set("later", "v", time() + 100);
    $c->set("past", "v", time() - 100);
    equal("before the window", $c->increment("window"), false);
    equal("a window", $c->add("window", 1, 2), true);
    equal("in the window", $c->increment("window"), 2);
    for ($n = 0; $n < 500 && $c->get("window") !== false; $n++) {
        usleep(20_000);
    }
    equal("after the window", $c->add("window", 1, 2), true);
    $kept = ["touched" => "v", "month" => "v", "later" => "v"];
    equal("what is kept", $c->getMulti(["touched", "month", "later", "past"]), $kept);
}

function quietly(): void
{
    $c = client([Memcached::OPT_NOREPLY => true]);
    for ($n = 0; $n < KEYS; $n++) {
        $c->set("quiet:$n", "0");
        $c->append("quiet:$n", (string) $n);
        $c->delete("nothing");
    }
    $c->quit();
    $keys = array_map(fn ($n) => "quiet:$n", range(0, KEYS - 1));
    $reader = client();
    for ($tries = 0; $tries < 500 && count($reader->getMulti($keys)) < KEYS; $tries++) {
        usleep(20_000);
    }
    equal("quiet requests", count($reader->getMulti($keys)), KEYS);
    $c = client([Memcached::OPT_BUFFER_WRITES => true]);
    for ($n = 0; $n < KEYS; $n++) {
        $c->set("buffered:$n", $n);
    }
    equal("buffered requests", $c->get("buffered:" . (KEYS - 1)), KEYS - 1);
}

function sessions(): void
{
    global $host, $port;
    ini_set("memcached.sess_binary_protocol", "0");
    ini_set("session.save_handler", "memcached");
    ini_set("session.save_path", "$host:$port");
    ini_set("session.use_cookies", "0");
    session_cache_limiter("");
    for ($visit = 1; $visit <= 3; $visit++) {
        session_id("visitor");
        equal("session_start", session_start(), true);
        equal("the session is locked", client()->get("memc.sess.key.lock.visitor") !== false, true);
        $_SESSION["visits"] = ($_SESSION["visits"] ?? 0) + 1;
        equal("visits", $_SESSION["visits"], $visit);
        equal("session_write_close", session_write_close(), true);
        equal("the session is free", client()->get("memc.sess.key.lock.visitor"), false);
    }
}

function administration(Memcached $c): void
{
    [$version] = array_values($c->getVersion());
    equal("version $version has three numbers", preg_match('/^\d+\.\d+\.\d+$/', $version), 1);
    [$stats] = array_values($c->getStats());
    equal("stats version", $stats["version"], $version);
    equal("stats curr_items", $stats["curr_items"] >= 1, true);
    [$settings] = array_values($c->getStats("settings"));
    equal("stats settings", $settings["maxconns"] > 0, true);
    equal("flush", $c->flush(), true);
    equal("after flush", $c->get("added"), false);
    equal("quit", $c->quit(), true);
    equal("a new connection", $c->set("k", "v"), true);
}

foreach ([[], [Memcached::OPT_NO_BLOCK => true]] as $options) {
    $c = client($options);
    $c->flush();
    storing($c);
    sizes($c);
    multiGet($c);
    counters($c);
}
expiry(client());
quietly();
sessions();
administration(client());
