# Shared by the scripts of Perl clients: the server's address, and checks that name the failure.
package Checks;

use strict;
use warnings;
use utf8;
use Time::HiRes qw(sleep time);
use Exporter "import";
our @EXPORT = qw($HOST $PORT $KEYS large too_large unicode_key equal same eventually is_version);

our ($HOST, $PORT) = @ARGV;
# Keys of one multi-get.
our $KEYS = 500;

# A value that fits the default maximum of 1 MiB for an item with its key, and one that does not.
sub large { return "l" x 1_000_000 }
sub too_large { return "t" x 2_000_000 }

# As bytes.
sub unicode_key {
    my $key = "schlüssel:鍵:🔑";
    utf8::encode($key);
    return $key;
}

sub short {
    my ($value) = @_;
    return "nothing" unless defined $value;
    return length $value <= 300 ? "'$value'" : substr($value, 0, 300) . "... of " . length $value;
}

sub equal {
    my ($what, $found, $expected) = @_;
    return if !defined $found && !defined $expected;
    return if defined $found && defined $expected && $found eq $expected;
    binmode STDERR, ":encoding(UTF-8)";
    print STDERR "$what: expected ", short($expected), ", found ", short($found), "\n";
    exit 1;
}

# Two hashes of plain values.
sub same {
    my ($what, $found, $expected) = @_;
    my ($left, $right) = map {
        my $hash = $_;
        join " ", map { "$_=$hash->{$_}" } sort keys %$hash;
    } $found, $expected;
    equal($what, $left, $right);
}

# Waits until `$call` returns nothing: the server's clock ticks in whole seconds.
sub eventually {
    my ($what, $call) = @_;
    my $start = time;
    while (defined(my $found = $call->())) {
        equal($what, $found, undef) if time - $start > 10;
        sleep 0.02;
    }
}

# Three numbers: several clients parse nothing else.
sub is_version {
    my ($what, $found) = @_;
    equal("$what $found has three numbers", $found =~ /^\d+\.\d+\.\d+$/ ? 1 : 0, 1);
}

1;
