# Cache::Memcached::Fast: pipelines of many commands, and `noreply` in void context.

use strict;
use warnings;
use utf8;
use FindBin;
use lib $FindBin::Bin;
use Cache::Memcached::Fast;
use Checks;

sub client {
    return Cache::Memcached::Fast->new({
        servers => [{address => "$HOST:$PORT", noreply => $_[0]}], io_timeout => 10,
        connect_timeout => 10, max_size => 1 << 24, utf8 => 1,
    });
}

my $version = client(0)->server_versions->{"$HOST:$PORT"};
is_version("version", $version);

for my $noreply (0, 1) {
    my $c = client($noreply);
    $c->flush_all;
    for my $value ("text", "", 7, "schlüssel") {
        equal("set", $c->set("k", $value), 1);
        equal("get", $c->get("k"), $value);
    }
    equal("get of nothing", $c->get("nothing"), undef);
    equal("set", $c->set("k", "v"), 1);
    equal("add over", $c->add("k", "w"), "");
    equal("add", $c->add("added", "w"), 1);
    equal("replace", $c->replace("k", "x"), 1);
    equal("replace of nothing", $c->replace("nothing", "x"), "");
    equal("append", $c->append("k", "-end"), 1);
    equal("prepend", $c->prepend("k", "start-"), 1);
    equal("append to nothing", $c->append("nothing", "x"), "");
    my ($unique, $value) = @{$c->gets("k")};
    equal("append, prepend", $value, "start-x-end");
    equal("cas", $c->cas("k", $unique, "new"), 1);
    equal("cas again", $c->cas("k", $unique, "newer"), "");
    equal("what cas left", $c->get("k"), "new");
    equal("gat", $c->gat(100, "k"), "new");
    equal("gats", $c->gats(100, "k")->[1], "new");
    equal("gat of nothing", $c->gat(100, "nothing"), undef);
    equal("delete", $c->delete("k"), 1);
    equal("delete again", $c->delete("k"), "");

    equal("set of a large value", $c->set("large", large()), 1);
    equal("get of a large value", $c->get("large") eq large(), 1);
    equal("set of a too large value", !$c->set("large", too_large()), 1);
    equal("after a too large value", $c->get("large"), undef);
    equal("a unicode key", $c->set(unicode_key(), "v"), 1);
    equal("get of a unicode key", $c->get(unicode_key()), "v");

    my @pairs = map { ["multi:$_", $_] } 1 .. $KEYS;
    my @keys = map { $_->[0] } @pairs;
    my %items = map { @$_ } @pairs;
    my @stored = $c->set_multi(@pairs);
    equal("set_multi", scalar(grep { $_ } @stored), $KEYS);
    same("get_multi", $c->get_multi(@keys, "nothing"), \%items);
    my $gets = $c->gets_multi(@keys, "nothing");
    same("gets_multi", {map { ($_ => $gets->{$_}[1]) } keys %$gets}, \%items);
    my %uniques = map { ($_->[0] => 1) } values %$gets;
    equal("uniques are unique", scalar(keys %uniques), $KEYS);
    same("gat_multi", scalar $c->gat_multi(100, @keys), \%items);
    my $sums = $c->incr_multi(map { [$_, 10] } @keys);
    same("incr_multi", $sums, {map { ($_ => $items{$_} + 10) } @keys});
    same("touch_multi", scalar $c->touch_multi(map { [$_, 100] } @keys), {map { ($_ => 1) } @keys});
    same("delete_multi", scalar $c->delete_multi(@keys), {map { ($_ => 1) } @keys});
    same("after delete_multi", $c->get_multi(@keys), {});

    equal("incr of nothing", $c->incr("n"), "");
    equal("decr of nothing", $c->decr("n"), "");
    $c->set("n", 10);
    equal("incr", $c->incr("n", 32), 42);
    equal("decr", $c->decr("n", 2), 40);
    equal("decr stops at zero", $c->decr("n", 100) + 0, 0);
    $c->set("n", "words");
    equal("incr of words", !$c->incr("n"), 1);
    equal("after an error", $c->get("n"), "words");
    # Quiet, when `noreply` is set.
    for my $n (1 .. 100) {
        $c->set("q", 0);
        $c->add("q", 1);
        $c->incr("q", $n);
        $c->append("q", "0");
        $c->touch("q", 100);
        $c->delete("nothing");
        equal("get after void commands", $c->get("q"), $n . "0");
    }
    $c->set("quiet:$_", $_) for 1 .. $KEYS;
    $c->nowait_push;
    equal("after nowait_push", $c->get("quiet:$KEYS"), $KEYS);
}

my $c = client(1);
$c->set("touched", "v", 2);
equal("touch", $c->touch("touched", 100), 1);
equal("touch of nothing", $c->touch("nothing", 100), "");
equal("before the window", $c->incr("window"), "");
equal("a window", $c->add("window", 1, 2), 1);
equal("in the window", $c->incr("window"), 2);
eventually("a window ends", sub { $c->get("window") });
equal("after the window", $c->add("window", 1, 2), 1);
equal("touch keeps", $c->get("touched"), "v");
$c->flush_all;
equal("after flush_all", $c->get("added"), undef);
$c->disconnect_all;
equal("a new connection", $c->set("k", "v"), 1);
