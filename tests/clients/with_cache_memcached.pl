# Cache::Memcached: plain sockets, `get a b \r\n` with a trailing blank.

use strict;
use warnings;
use utf8;
use FindBin;
use lib $FindBin::Bin;
use Cache::Memcached;
use Checks;

my $c = Cache::Memcached->new({
    servers => ["$HOST:$PORT"], compress_threshold => 0, select_timeout => 10, parser_class => "",
});
$c->flush_all;

for my $value ("text", "", 7, "\0\r\n\xff") {
    equal("set", $c->set("k", $value), 1);
    equal("get", $c->get("k"), $value);
}
equal("set of a structure", $c->set("k", {a => [1]}), 1);
equal("get of a structure", $c->get("k")->{a}[0], 1);
equal("get of nothing", $c->get("nothing"), undef);
equal("set", $c->set("k", "v"), 1);
equal("add over", !$c->add("k", "w"), 1);
equal("add", $c->add("added", "w"), 1);
equal("replace", $c->replace("k", "x"), 1);
equal("replace of nothing", !$c->replace("nothing", "x"), 1);
equal("append", $c->append("k", "-end"), 1);
equal("prepend", $c->prepend("k", "start-"), 1);
equal("append, prepend", $c->get("k"), "start-x-end");
equal("delete", $c->delete("k"), 1);
equal("delete again", !$c->delete("k"), 1);

equal("set of a large value", $c->set("large", large()), 1);
equal("get of a large value", $c->get("large") eq large(), 1);
equal("set of a too large value", !$c->set("large", too_large()), 1);
equal("after a too large value", $c->get("large"), undef);
equal("a unicode key", $c->set(unicode_key(), "v"), 1);
equal("get of a unicode key", $c->get(unicode_key()), "v");

my %items = map { ("multi:$_" => $_) } 1 .. $KEYS;
$c->set($_, $items{$_}) for keys %items;
my $found = $c->get_multi(keys %items, "nothing");
equal("get_multi", join(" ", map { "$_=$found->{$_}" } sort keys %$found),
    join(" ", map { "$_=$items{$_}" } sort keys %items));

equal("incr of nothing", $c->incr("n"), undef);
equal("decr of nothing", $c->decr("n"), undef);
$c->set("n", 10);
equal("incr", $c->incr("n", 32), 42);
equal("decr", $c->decr("n", 2), 40);
equal("decr stops at zero", $c->decr("n", 100) + 0, 0);
$c->set("n", "words");
equal("incr of words", $c->incr("n"), undef);
equal("after an error", $c->get("n"), "words");
# In void context the library requests no result.
for my $n (1 .. 100) {
    $c->set("q", 0);
    $c->incr("q", $n);
    $c->delete("nothing");
    equal("get after void commands", $c->get("q"), $n);
}

equal("before the window", $c->incr("window"), undef);
equal("a window", $c->add("window", 1, 2), 1);
equal("in the window", $c->incr("window"), 2);
eventually("a window ends", sub { $c->get("window") });
equal("after the window", $c->add("window", 1, 2), 1);

my $stats = $c->stats(["misc", "settings"]);
my $misc = $stats->{hosts}{"$HOST:$PORT"}{misc};
is_version("version in stats", $misc->{version});
equal("stats curr_items", $misc->{curr_items} >= 1, 1);
equal("flush_all", $c->flush_all, 1);
equal("after flush_all", $c->get("added"), undef);
$c->disconnect_all;
equal("a new connection", $c->set("k", "v"), 1);
