package aliases

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/internal/cidr"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func pfxs(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, pfx(t))
	}
	return out
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

// defaults is the chart's pool.
func defaults() []netip.Prefix { return pfxs("198.18.0.0/15", "fdd7:585b:e300::/40") }

// known returns what single addresses are known as.
func known(g Allocation) map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for _, b := range g.Blocks {
		at := b.Alias.Addr()
		for _, s := range b.Slots {
			if s.Addr.IsValid() {
				out[s.Addr] = at
			}
			at = at.Next()
		}
	}
	return out
}

func slot(a string) Slot { return Slot{Addr: netip.MustParseAddr(a)} }

func TestPlanGivesStableAliases(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	whole := Allocation{Prefixes: []Alias{{pfx("10.200.0.0/16"), pfx("198.18.0.0/16")}}}
	single := Allocation{Blocks: []Block{{Alias: pfx("198.19.0.4/30"), Slots: []Slot{slot("10.200.0.9"), {}, {}, {}}}}}
	for name, tc := range map[string]struct {
		in       Input
		prefixes string // the aliases of prefixes
		known    map[string]string
		split    string
		unnamed  int
		refused  int
	}{
		"a prefix that fits has an alias of the pool, also where it is free itself": {
			in: Input{Prefixes: pfxs("10.9.0.0/16", "fd00:9::/56")}, prefixes: "[{10.9.0.0/16 198.18.0.0/16} {fd00:9::/56 fdd7:585b:e300::/56}]",
		},
		"existing aliases stay": {
			in:       Input{Have: Allocation{Prefixes: []Alias{{pfx("10.9.0.0/24"), pfx("198.19.7.0/24")}}}, Prefixes: pfxs("10.9.0.0/24", "10.8.0.0/24")},
			prefixes: "[{10.8.0.0/24 198.19.6.0/24} {10.9.0.0/24 198.19.7.0/24}]",
		},
		"aliases of withdrawn prefixes are removed": {in: Input{Have: whole}, prefixes: "[]"},
		"an alias outside of the pool is replaced": {
			in: Input{Have: Allocation{Prefixes: []Alias{{pfx("8.8.0.0/16"), pfx("8.8.0.0/16")}}}, Prefixes: pfxs("8.8.0.0/16")}, prefixes: "[{8.8.0.0/16 198.18.0.0/16}]",
		},
		"an alias that became taken is replaced": {
			in: Input{Have: whole, Prefixes: pfxs("10.200.0.0/16"), Taken: pfxs("198.18.5.0/24")}, prefixes: "[{10.200.0.0/16 198.19.0.0/16}]",
		},
		"a part of the pool that nodes reach otherwise has no new alias, and keeps those that stand": {
			in: Input{
				Have: Allocation{Prefixes: []Alias{{pfx("10.9.0.0/24"), pfx("198.18.0.0/24")}}}, Prefixes: pfxs("10.9.0.0/24", "10.8.0.0/24"),
				Avoid: pfxs("198.18.0.0/16", "198.19.0.0/24"),
			},
			prefixes: "[{10.8.0.0/24 198.19.1.0/24} {10.9.0.0/24 198.18.0.0/24}]",
		},
		"a second /16 is known address by address": {
			in: Input{
				Others: []Space{whole.Space()}, Prefixes: pfxs("10.200.0.0/16"), Addresses: addrs("10.200.3.7", "10.200.0.1"),
			},
			prefixes: "[]", split: "[10.200.0.0/16]", known: map[string]string{"10.200.0.1": "198.19.0.0", "10.200.3.7": "198.19.0.1"},
		},
		"before it named one nothing is taken for it": {
			in: Input{Others: []Space{whole.Space()}, Prefixes: pfxs("10.200.0.0/16")}, prefixes: "[]", split: "[10.200.0.0/16]",
		},
		"addresses that a prefix's alias covers have none of their own": {
			in: Input{Have: whole, Prefixes: pfxs("10.200.0.0/16"), Addresses: addrs("10.200.3.7")}, prefixes: "[{10.200.0.0/16 198.18.0.0/16}]",
		},
		"an address that is in none of its prefixes has one": {
			in: Input{Addresses: addrs("192.168.5.1")}, prefixes: "[]", known: map[string]string{"192.168.5.1": "198.18.0.0"},
		},
		"a prefix whose addresses have aliases gets none when there is room": {
			in:       Input{Have: single, Prefixes: pfxs("10.200.0.0/16"), Addresses: addrs("10.200.0.9", "10.200.0.1")},
			prefixes: "[]", split: "[10.200.0.0/16]", known: map[string]string{"10.200.0.9": "198.19.0.4", "10.200.0.1": "198.19.0.5"},
		},
		"a prefix that is too large stops no other": {
			in: Input{Prefixes: pfxs("10.0.0.0/8", "172.20.0.0/24")}, prefixes: "[{172.20.0.0/24 198.18.0.0/24}]", split: "[10.0.0.0/8]",
		},
		"only the malformed prefix and the address of no host are refused": {
			in: Input{
				Prefixes: []netip.Prefix{pfx("10.0.0.1/8"), {}, pfx("10.9.0.0/24")}, Addresses: addrs("127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.1", "255.255.255.255", "fe80::1", "10.1.0.1"),
			},
			prefixes: "[{10.9.0.0/24 198.18.0.0/24}]", known: map[string]string{"10.1.0.1": "198.18.1.0"}, refused: 8,
		},
		"a family without a pool has none": {
			in:       Input{Pool: pfxs("10.240.0.0/12"), Prefixes: pfxs("fd00::/64"), Addresses: addrs("fd00::1", "10.1.0.1")},
			prefixes: "[]", split: "[fd00::/64]", known: map[string]string{"10.1.0.1": "10.240.0.0"}, unnamed: 1,
		},
		"where there is no room for a block there is one for less": {
			in:       Input{Pool: pfxs("10.240.0.0/26"), Taken: pfxs("10.240.0.1/32", "10.240.0.32/27", "10.240.0.16/28", "10.240.0.8/29"), Addresses: addrs("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.7", "10.1.0.8")},
			prefixes: "[]", unnamed: 1, known: map[string]string{
				"10.1.0.1": "10.240.0.4", "10.1.0.2": "10.240.0.5", "10.1.0.3": "10.240.0.6", "10.1.0.4": "10.240.0.7",
				"10.1.0.5": "10.240.0.0", "10.1.0.6": "10.240.0.2", "10.1.0.7": "10.240.0.3",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.in.Pool == nil {
				tc.in.Pool = defaults()
			}
			tc.in.Now = start
			got := Plan(tc.in)
			if s := fmt.Sprint(got.Prefixes); s != tc.prefixes {
				t.Errorf("prefixes are known as %s, want %s", s, tc.prefixes)
			}
			names := map[string]string{}
			for a, alias := range known(got.Allocation) {
				names[a.String()] = alias.String()
			}
			if diff := cmp.Diff(tc.known, names); diff != "" && len(tc.known)+len(names) > 0 {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if s := fmt.Sprint(got.ByAddress); s != tc.split && tc.split+s != "[]" {
				t.Errorf("known by address: %s, want %s", s, tc.split)
			}
			if len(got.Unallocated) != tc.unnamed || len(got.Refused) != tc.refused {
				t.Errorf("%d without an alias and %q refused, want %d and %d", len(got.Unallocated), got.Refused, tc.unnamed, tc.refused)
			}
			tc.in.Have = got.Allocation
			if again := Plan(tc.in); !cmp.Equal(again, got, compare()) {
				t.Errorf("it is not done:\n%s", cmp.Diff(got, again, compare()))
			}
		})
	}
}

func compare() cmp.Option {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	}
}

func TestAnAliasIsGivenToNoOtherForAWhile(t *testing.T) {
	t.Parallel()
	in := Input{Pool: pfxs("10.240.0.0/30"), Addresses: addrs("10.1.0.1"), Now: time.Unix(1_800_000_000, 0)}
	plan := func(after time.Duration, named ...string) map[netip.Addr]netip.Addr {
		in.Now, in.Addresses = in.Now.Add(after), addrs(named...)
		r := Plan(in)
		in.Have = r.Allocation
		return known(r.Allocation)
	}
	first, second, third := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.9")
	alias := plan(0, "10.1.0.1")[first]
	if got := plan(0, "10.1.0.2"); got[first] != alias || got[second] == alias {
		t.Fatalf("right after it was released: %v", got)
	}
	if got := plan(quarantine-time.Second, "10.1.0.1", "10.1.0.2"); got[first] != alias {
		t.Fatalf("an address that is back has another alias: %v", got)
	}
	plan(0, "10.1.0.2")
	if got := plan(quarantine, "10.1.0.2"); got[first].IsValid() {
		t.Fatalf("it is kept for ever: %v", got)
	}
	if got := plan(0, "10.1.0.2", "10.1.0.9"); got[third] != alias {
		t.Fatalf("it is allocated to no address: %v", got)
	}
	// Where there is no other room, it does not take as long.
	plan(0, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.9")
	alias = plan(0, "10.1.0.2", "10.1.0.3", "10.1.0.9", "10.1.0.4")[first]
	if got := plan(shortQuarantine-time.Second, "10.1.0.2", "10.1.0.3", "10.1.0.9", "10.1.0.4"); got[first] != alias {
		t.Fatalf("it is taken too early: %v", got)
	}
	if got := plan(time.Second, "10.1.0.2", "10.1.0.3", "10.1.0.9", "10.1.0.4"); got[first].IsValid() || got[netip.MustParseAddr("10.1.0.4")] != alias {
		t.Fatalf("it is not taken where there is no other: %v", got)
	}
	if got := plan(quarantine); len(got) == 0 {
		t.Fatal("all is forgotten at once")
	}
	if plan(quarantine); len(in.Have.Blocks) != 0 {
		t.Fatalf("an empty block is kept: %v", in.Have.Blocks)
	}
}

// clusters plans for clusters that share the default pool and announce the same /16.
type clusters struct {
	given []Allocation
	now   time.Time
}

// use has a cluster name so many addresses, and returns how many have no alias.
func (c *clusters) use(i, n int) int {
	in := Input{Pool: defaults(), Have: c.given[i], Prefixes: pfxs("10.200.0.0/16"), Now: c.now}
	for j := range c.given {
		if j != i {
			in.Others = append(in.Others, c.given[j].Space())
		}
	}
	for a := range n {
		in.Addresses = append(in.Addresses, netip.AddrFrom4([4]byte{10, 200, byte(a % 16), byte(a / 16)}))
	}
	r := Plan(in)
	c.given[i] = r.Allocation
	return len(r.Unallocated)
}

// 250 clusters that announce the same /16 have aliases in the default pool for the
// addresses that they use, and another one does not change them.
func TestTheDefaultPoolServes250Clusters(t *testing.T) {
	t.Parallel()
	c := &clusters{given: make([]Allocation, 250), now: time.Unix(1_800_000_000, 0)}
	for _, n := range []int{0, 3, 200} {
		for i := range c.given {
			if lacks := c.use(i, n); lacks > 0 {
				t.Fatalf("cluster %d lacks %d of %d aliases", i, lacks, n)
			}
		}
	}
	checkDisjoint(t, c.given)
	before := slices.Clone(c.given)
	c.given = append(c.given, Allocation{})
	if lacks := c.use(250, 128); lacks > 0 {
		t.Errorf("the 251st lacks %d aliases", lacks)
	}
	if diff := cmp.Diff(before, c.given[:250], compare()); diff != "" {
		t.Errorf("another one changed:\n%s", diff)
	}
}

// Peers that take all that they can get leave each of the others its share.
func TestPeersCannotTakeTheSharesOfOthers(t *testing.T) {
	t.Parallel()
	c := &clusters{given: make([]Allocation, 256), now: time.Unix(1_800_000_000, 0)}
	for i := range 30 {
		c.use(i, maxAddresses)
	}
	for i := 30; i < len(c.given); i++ {
		if lacks := c.use(i, 128); lacks > 0 {
			t.Fatalf("cluster %d lacks %d aliases", i, lacks)
		}
	}
	checkDisjoint(t, c.given)
}

type failer interface {
	Fatalf(string, ...any)
	Helper()
}

// checkDisjoint fails where two aliases overlap.
func checkDisjoint(t failer, given []Allocation) {
	t.Helper()
	var all []netip.Prefix
	for _, g := range given {
		s := g.Space()
		all = slices.Concat(all, s.Prefixes, s.Blocks)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	for i := 1; i < len(all); i++ {
		if all[i-1].Overlaps(all[i]) {
			t.Fatalf("%v and %v overlap", all[i-1], all[i])
		}
	}
}

// world is some peers that share a pool, with an agent that is killed at any time: stored
// outlives it, and is all that is announced to peers; planned does not.
type world struct {
	pool            []netip.Prefix
	now             time.Time
	stored, planned []Allocation
	named           []map[netip.Addr]bool
	prefixes        [][]netip.Prefix
	announced       []map[netip.Addr]netip.Addr // by peer: aliases that are in use
}

func (w *world) plan(i int) Result {
	in := Input{Pool: w.pool, Have: w.planned[i], Prefixes: w.prefixes[i], Addresses: slices.Collect(maps.Keys(w.named[i])), Now: w.now}
	for j := range w.stored {
		if j != i { // what is stored may still be announced, what is planned soon is
			a, b := w.stored[j].Space(), w.planned[j].Space()
			in.Others = append(in.Others, Space{Prefixes: slices.Concat(a.Prefixes, b.Prefixes), Blocks: cidr.Of(slices.Concat(a.Blocks, b.Blocks)...)})
		}
	}
	r := Plan(in)
	w.planned[i] = r.Allocation
	return r
}

func TestAliasesNeverOverlapNorChangeNorLeak(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "peers")
		w := &world{
			pool: pfxs(rapid.SampledFrom([]string{"10.240.0.0/21", "10.240.0.0/27", "198.18.0.0/15"}).Draw(t, "pool"), "fdd7::/112"),
			now:  time.Unix(1_800_000_000, 0), stored: make([]Allocation, n), planned: make([]Allocation, n), prefixes: make([][]netip.Prefix, n),
		}
		for range n {
			w.named, w.announced = append(w.named, map[netip.Addr]bool{}), append(w.announced, map[netip.Addr]netip.Addr{})
		}
		address := func() netip.Addr {
			if rapid.IntRange(0, 4).Draw(t, "six") == 0 {
				return netip.AddrFrom16([16]byte{0xfd, 1, 15: byte(rapid.IntRange(0, 40).Draw(t, "a"))})
			}
			return netip.AddrFrom4([4]byte{10, 200, byte(rapid.IntRange(0, 2).Draw(t, "net")), byte(rapid.IntRange(1, 60).Draw(t, "a"))})
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, n-1).Draw(t, "peer")
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1:
				for range rapid.IntRange(1, 30).Draw(t, "more") {
					w.named[i][address()] = true
				}
			case 2:
				for a := range w.named[i] {
					if rapid.Bool().Draw(t, "gone") {
						delete(w.named[i], a)
						delete(w.announced[i], a)
					}
				}
			case 3:
				w.prefixes[i] = pfxs(rapid.SampledFrom([][]string{{}, {"10.200.0.0/24"}, {"10.200.0.0/24", "10.200.2.0/25"}, {"10.200.0.0/16"}, {"fd01::/120"}}).Draw(t, "prefixes")...)
			case 4:
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "s")) * time.Second)
			case 5: // the agent is killed
				copy(w.planned, w.stored)
			default:
				before := w.planned[i].Space()
				r := w.plan(i)
				checkDisjoint(t, w.planned)
				checkPlan(t, w, i, r, before)
				if rapid.IntRange(0, 3).Draw(t, "store") > 0 {
					w.store(t, i)
				}
			}
			checkDisjoint(t, w.stored)
		}
		// When no alias is used any more the pool is as it was.
		for i := range n {
			w.named[i], w.prefixes[i] = map[netip.Addr]bool{}, nil
		}
		for range 3 {
			for i := range n {
				w.plan(i)
				copy(w.stored, w.planned)
			}
			w.now = w.now.Add(quarantine)
		}
		for i := range n {
			if s := w.stored[i].Space(); len(s.Blocks)+len(s.Prefixes) > 0 {
				t.Fatalf("peer %d still has %v", i, s)
			}
		}
	})
}

// store writes what is planned, and so announces it. An alias that is in use stays what it was.
func (w *world) store(t failer, i int) {
	w.stored[i] = w.planned[i]
	for a, alias := range known(w.stored[i]) {
		if !w.named[i][a] {
			continue
		}
		if was, ok := w.announced[i][a]; ok && was != alias {
			t.Fatalf("peer %d: %v was known as %v and is as %v", i, a, was, alias)
		}
		w.announced[i][a] = alias
	}
}

func checkPlan(t failer, w *world, i int, r Result, before Space) {
	names := known(r.Allocation)
	size := 0
	for _, b := range r.Blocks {
		size += len(b.Slots)
	}
	if size > maxAddresses || len(r.Blocks) > maxBlocks {
		t.Fatalf("%d aliases in %d blocks", size, len(r.Blocks))
	}
	seen := map[netip.Addr]netip.Addr{}
	for a, alias := range names {
		if b, dup := seen[alias]; dup {
			t.Fatalf("%v and %v are both known as %v", a, b, alias)
		}
		seen[alias] = a
	}
	for a := range w.named[i] {
		whole := slices.ContainsFunc(r.Prefixes, func(p Alias) bool { return p.Prefix.Contains(a) })
		if _, ok := names[a]; !ok && !whole && !slices.Contains(r.Unallocated, a) {
			t.Fatalf("%v has no alias, which is not reported", a)
		}
	}
	for _, p := range w.prefixes[i] {
		whole := slices.ContainsFunc(r.Prefixes, func(b Alias) bool { return b.Prefix == p })
		if whole == slices.Contains(r.ByAddress, p) {
			t.Fatalf("%v has an alias: %t, and is known by address: %t", p, whole, !whole)
		}
	}
}

// The aliases of one peer do not depend on the announcements of another.
func TestAnAnnouncementLeavesTheAliasesOfOthers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_800_000_000, 0)
		a := Plan(Input{Pool: defaults(), Prefixes: pfxs("10.200.0.0/16"), Addresses: addrs("10.200.0.1"), Now: now})
		announced := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "a")))
		}), 0, 50).Draw(t, "addresses")
		b := Plan(Input{Pool: defaults(), Others: []Space{a.Space()}, Prefixes: pfxs("10.200.0.0/16"), Addresses: announced, Now: now})
		again := Plan(Input{Pool: defaults(), Have: a.Allocation, Others: []Space{b.Space()}, Prefixes: pfxs("10.200.0.0/16"), Addresses: addrs("10.200.0.1"), Now: now})
		if !cmp.Equal(a, again, compare()) {
			t.Fatalf("%s", cmp.Diff(a, again, compare()))
		}
		checkDisjoint(t, []Allocation{a.Allocation, b.Allocation})
	})
}

// Whatever was stored, the resulting plan is valid.
func FuzzWhatIsStored(f *testing.F) {
	f.Add(uint64(1), "198.18.0.0/26", "10.200.0.1", "198.18.0.0/24", uint8(64))
	f.Add(uint64(2), "198.18.0.7/26", "::1", "198.18.0.0/30", uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, alias, addr, whole string, slots uint8) {
		r := rand.New(rand.NewPCG(seed, 0))
		block, _ := netip.ParsePrefix(alias)
		w, _ := netip.ParsePrefix(whole)
		a, _ := netip.ParseAddr(addr)
		b := Block{Alias: block}
		for range slots {
			b.Slots = append(b.Slots, Slot{Addr: a})
			if a.IsValid() && r.IntN(2) == 0 {
				a = a.Next()
			}
		}
		in := Input{
			Pool: append(defaults(), w), Have: Allocation{Blocks: []Block{b, b}, Prefixes: []Alias{{w, block}, {block, w}}},
			Prefixes: []netip.Prefix{w, block}, Addresses: []netip.Addr{a}, Others: []Space{{Blocks: []netip.Prefix{w}}}, Now: time.Unix(1_800_000_000, 0),
		}
		got := Plan(in)
		checkDisjoint(t, []Allocation{got.Allocation})
		for _, p := range got.Space().Blocks {
			if w.IsValid() && p.Overlaps(w) {
				t.Fatalf("%v is another's", p)
			}
		}
	})
}

func TestRoomIsTakenWhereItIsSmallest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pool := pfx("198.18.0.0/22")
		var busy []netip.Prefix
		for range rapid.IntRange(0, 12).Draw(t, "busy") {
			at := pool.Addr().As4()
			at[2] += byte(rapid.IntRange(0, 3).Draw(t, "c"))
			at[3] = rapid.Byte().Draw(t, "d")
			busy = append(busy, netip.PrefixFrom(netip.AddrFrom4(at), rapid.IntRange(24, 32).Draw(t, "bits")).Masked())
		}
		r := newRoom([]netip.Prefix{pool}, busy, false)
		free := 0
		for a := pool.Addr(); pool.Contains(a); a = a.Next() {
			if !slices.ContainsFunc(busy, func(p netip.Prefix) bool { return p.Contains(a) }) {
				free++
			}
		}
		if int(r.left) != free {
			t.Fatalf("%v addresses are free, want %d", r.left, free)
		}
		for {
			bits := rapid.IntRange(26, 32).Draw(t, "want")
			p, ok := r.take(bits)
			if !ok {
				for a := pool.Addr(); pool.Contains(a); {
					q := netip.PrefixFrom(a, bits)
					if !slices.ContainsFunc(busy, q.Overlaps) {
						t.Fatalf("%v is free, and not found", q)
					}
					for range 1 << (32 - bits) {
						a = a.Next()
					}
				}
				return
			}
			if p.Bits() != bits || slices.ContainsFunc(busy, p.Overlaps) || !pool.Contains(p.Addr()) {
				t.Fatalf("%v was given, which is busy", p)
			}
			busy = append(busy, p)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{10, 100, 250, 500} {
		b.Run(fmt.Sprintf("%d peers", n), func(b *testing.B) {
			given := make([]Allocation, n)
			in := Input{Pool: defaults(), Prefixes: pfxs("10.200.0.0/16"), Now: time.Unix(1_800_000_000, 0)}
			for a := range 100 {
				in.Addresses = append(in.Addresses, netip.AddrFrom4([4]byte{10, 200, 0, byte(a)}))
			}
			for i := range given {
				in.Have, in.Others = Allocation{}, nil
				for j := range given {
					if j != i {
						in.Others = append(in.Others, given[j].Space())
					}
				}
				given[i] = Plan(in).Allocation
			}
			in.Have = given[n-1]
			b.ReportAllocs()
			for b.Loop() {
				Plan(in)
			}
		})
	}
}
