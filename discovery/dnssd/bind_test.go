package dnssd

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/namedtest"
	"github.com/entente-dev/entente/peering"
)

const (
	secretWide   = "c2l4dGVlbiBieXRlcyBvZiBhIHNlY3JldCBvciBtb3Jl"
	secretNarrow = "YW5vdGhlciBzZWNyZXQgb2Ygc2l4dGVlbiBieXRlcyBvciBzbw=="
)

func mustKey(t testing.TB, name, algorithm, secret string) Key {
	t.Helper()
	k, err := NewKey(name, algorithm, secret)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func office() discovery.Service {
	return discovery.Service{
		Instance: "office", Host: "office", Port: 7443, Automatic: true,
		Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd12::1")},
		Text:      discovery.Text{ID: idA, Name: `the "Büro"; \ office`, API: "1-2", Fingerprint: "0123456789abcdef"},
	}
}

// bind starts a named with these zones: example.com, which key "wide" may write and where key
// "narrow" may write only its own instance "office", and frozen.test, which no key may write.
func bind(t *testing.T) netip.AddrPort {
	t.Helper()
	return namedtest.New(t, fmt.Sprintf(`
key "wide" { algorithm hmac-sha512; secret %q; };
key "narrow" { algorithm hmac-sha256; secret %q; };
zone "example.com" { type primary; file "example.com"; update-policy {
	grant wide zonesub ANY;
	grant narrow name office._entente._tcp.example.com. SRV TXT;
	grant narrow name office.example.com. A AAAA;
}; };
zone "frozen.test" { type primary; file "frozen.test"; };
`, secretWide, secretNarrow), "example.com", "frozen.test").Addr
}

func tool(t *testing.T, in, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian: bind9-dnsutils, bind9-utils)", name)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// keeper is a Publisher, and how it left the zone.
type keeper struct {
	Publisher
	status Status
}

func (k *keeper) Publish(ctx context.Context) (err error) {
	k.status, err = k.Publisher.Publish(ctx)
	return err
}

func (k *keeper) Withdraw(ctx context.Context) (err error) {
	k.status, err = k.Publisher.Withdraw(ctx)
	return err
}

func publisher(server netip.AddrPort, key Key, s discovery.Service, domain string) *keeper {
	return &keeper{Publisher: Publisher{Service: s, Domain: domain, Zone: "example.com", Key: key, Server: server}}
}

func through(t *testing.T, server netip.AddrPort) Exchange {
	t.Helper()
	r, err := NewResolvers(server)
	if err != nil {
		t.Fatal(err)
	}
	return r.Exchange
}

// find browses a domain until nothing is due.
func find(t *testing.T, server netip.AddrPort, domain string) Domain {
	t.Helper()
	exchange := through(t, server)
	p := newPlan(1, func() float64 { return 0 })
	now := time.Now()
	p.add(domain+".", now)
	for {
		a, ok := p.take(now)
		if !ok {
			break
		}
		got, err := lookup(t.Context(), exchange, a.question, a.domain)
		if err != nil {
			p.failed(a, err, now)
		} else {
			p.answered(a, got, now)
		}
	}
	d, _ := p.snapshot(domain+".", now)
	return d
}

func TestBINDServesPublishedRecords(t *testing.T) {
	t.Parallel()
	server := bind(t)
	wide := mustKey(t, "wide", "hmac-sha512", secretWide)
	p := publisher(server, wide, office(), "example.com")
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.status; s.Instance != "office" || s.Host != "office" || len(s.Missing) != 0 {
		t.Errorf("status %+v", s)
	}
	d := find(t, server, "example.com")
	if len(d.Found) != 1 || len(d.Problems) != 0 || d.Err != "" {
		t.Fatalf("found %+v", d)
	}
	f := d.Found[0]
	if f.Text != office().Text || !f.Automatic || f.Instance != "office" || !slices.Equal(f.Endpoints, []string{"[fd12::1]:7443", "10.1.0.1:7443"}) {
		t.Errorf("found %+v", f)
	}
	dig := func(args ...string) string {
		return tool(t, "", "dig", append([]string{"@127.0.0.1", "-p", fmt.Sprint(server.Port()), "+short"}, args...)...)
	}
	for query, want := range map[string]string{
		"_entente._tcp.example.com PTR":                 "office._entente._tcp.example.com.\n",
		"_automatic._sub._entente._tcp.example.com PTR": "office._entente._tcp.example.com.\n",
		"_services._dns-sd._udp.example.com PTR":        "_entente._tcp.example.com.\n",
		"office._entente._tcp.example.com SRV":          "0 0 7443 office.example.com.\n",
		"office.example.com A":                          "10.1.0.1\n",
		"office.example.com AAAA":                       "fd12::1\n",
	} {
		if got := dig(strings.Fields(query)...); got != want {
			t.Errorf("dig %s: %q, want %q", query, got, want)
		}
	}

	// What is there already is not written again: the zone's serial number stays.
	serial := dig("example.com", "SOA")
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := dig("example.com", "SOA"); got != serial {
		t.Errorf("SOA %q after nothing changed, before %q", got, serial)
	}

	// Another cluster of the same name gets another name, and removes nothing.
	other := office()
	other.Text = discovery.Text{ID: idB, Name: "other"}
	other.Addresses = []netip.Addr{netip.MustParseAddr("10.2.0.1")}
	other.Automatic = false
	p2 := publisher(server, wide, other, "example.com")
	var claims []string
	p2.Claim = func(_ context.Context, instance, host string) error {
		claims = append(claims, instance+" at "+host)
		return nil
	}
	for range 2 { // And the same one the next time.
		if err := p2.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := p2.status; s.Instance != "office (2)" || s.Host != "office-2" {
			t.Errorf("status %+v", s)
		}
	}
	// The names were claimed before they were written, and not without a write.
	if !slices.Equal(claims, []string{"office (2) at office", "office (2) at office-2"}) && !slices.Equal(claims, []string{"office (2) at office-2"}) {
		t.Errorf("claimed %q", claims)
	}
	if d := find(t, server, "example.com"); len(d.Found) != 2 || d.Found[1].ID != idB || d.Found[0].ID != idA || d.Found[1].Automatic {
		t.Errorf("found %+v", d)
	}

	// A new publisher of the first one, as after a restart, with another address and
	// port: the old ones go.
	moved := office()
	moved.Port, moved.Automatic = 7444, false
	moved.Addresses = []netip.Addr{netip.MustParseAddr("10.1.0.9")}
	p = publisher(server, wide, moved, "example.com")
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := find(t, server, "example.com"); len(d.Found) != 2 || !slices.Equal(d.Found[0].Endpoints, []string{"10.1.0.9:7444"}) || d.Found[0].Automatic {
		t.Errorf("found %+v", d)
	}

	if err := p.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := find(t, server, "example.com"); len(d.Found) != 1 || d.Found[0].ID != idB {
		t.Errorf("found %+v", d)
	}
	if got := dig("office.example.com", "ANY"); got != "" {
		t.Errorf("what is withdrawn leaves %q", got)
	}
	if err := p.Withdraw(t.Context()); err != nil {
		t.Errorf("withdraw again: %v", err)
	}
}

func TestBINDRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	server := bind(t)
	late := func() time.Time { return time.Now().Add(-time.Hour) }
	for name, tt := range map[string]struct {
		key    Key
		domain string
		zone   string
		now    func() time.Time
		server netip.AddrPort
		err    string
	}{
		"another secret":       {key: mustKey(t, "wide", "hmac-sha512", secretNarrow), domain: "example.com", err: "BADSIG"},
		"an unknown key":       {key: mustKey(t, "nobody", "hmac-sha256", secretWide), domain: "example.com", err: "BADKEY"},
		"another algorithm":    {key: mustKey(t, "wide", "hmac-sha256", secretWide), domain: "example.com", err: "BADKEY"},
		"a clock that is late": {key: mustKey(t, "wide", "hmac-sha512", secretWide), domain: "example.com", now: late, err: "set them right"},
		"a zone that is not updated": {
			key: mustKey(t, "wide", "hmac-sha512", secretWide), domain: "frozen.test", err: "REFUSED",
		},
		"a zone that is not there": {
			key: mustKey(t, "wide", "hmac-sha512", secretWide), domain: "elsewhere.test", zone: "elsewhere.test", err: "REFUSED",
		},
		"a zone that is too small": {
			key: mustKey(t, "wide", "hmac-sha512", secretWide), domain: "example.com", zone: "sub.example.com", err: "is not in the zone",
		},
		"another's instance": {
			key: mustKey(t, "narrow", "hmac-sha256", secretNarrow), domain: "sub.example.com", zone: "example.com", err: "REFUSED",
		},
		"nobody there": {
			key: mustKey(t, "wide", "hmac-sha512", secretWide), domain: "example.com", server: netip.AddrPortFrom(server.Addr(), namedtest.FreePort(t)), err: "reachable",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Publisher{Service: office(), Domain: tt.domain, Zone: cmp.Or(tt.zone, tt.domain), Key: tt.key, Server: server, now: tt.now}
			if tt.server.IsValid() {
				p.Server = tt.server
			}
			_, err := p.Publish(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			for _, text := range []string{err.Error(), fmt.Sprintf("%+v %#v", p, p)} {
				if leaks(text) {
					t.Errorf("the secret is in %q", text)
				}
			}
		})
	}
}

// A key that may write no more than its instance is enough once the administrator wrote
// the pointers.
func TestBINDLetsOneKeyWriteItsOwnInstanceOnly(t *testing.T) {
	t.Parallel()
	server := bind(t)
	narrow := mustKey(t, "narrow", "hmac-sha256", secretNarrow)
	p := publisher(server, narrow, office(), "example.com")
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := p.status
	if len(s.Missing) != 3 {
		t.Fatalf("status %+v", s)
	}
	var script strings.Builder
	fmt.Fprintf(&script, "server 127.0.0.1 %d\nzone example.com\n", server.Port())
	for _, rr := range s.Missing {
		fmt.Fprintf(&script, "update add %s\n", rr)
	}
	script.WriteString("send\n")
	tool(t, script.String(), "nsupdate", "-y", "hmac-sha512:wide:"+secretWide)
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.status; len(s.Missing) != 0 {
		t.Errorf("status %+v", s)
	}
	if d := find(t, server, "example.com"); len(d.Found) != 1 || !d.Found[0].Automatic {
		t.Errorf("found %+v", d)
	}
	other := office()
	other.Instance, other.Host = "other", "other"
	if err := publisher(server, narrow, other, "example.com").Publish(t.Context()); err == nil || !strings.Contains(err.Error(), "REFUSED") {
		t.Errorf("another's instance: %v", err)
	}
	if err := p.Withdraw(t.Context()); err != nil {
		t.Error(err)
	}
	if s := p.status; len(s.Left) != 2 || !strings.Contains(s.Left[0], "PTR") {
		t.Errorf("what the key may not remove is not named: %+v", s)
	}
	if d := find(t, server, "example.com"); len(d.Found) != 0 {
		t.Errorf("found %+v", d)
	}
}

// What nsupdate wrote is found, also where the list of instances needs TCP.
func TestRecordsOfNsupdateAreFound(t *testing.T) {
	t.Parallel()
	server := bind(t)
	var script strings.Builder
	fmt.Fprintf(&script, "server 127.0.0.1 %d\nzone example.com\n", server.Port())
	const n = 60
	for i := range n {
		name := fmt.Sprintf(`cluster\032with\032a\032long\032name\032and\032a\032number\032%d._entente._tcp.example.com.`, i)
		id, err := peering.ParseClusterID(strings.Repeat(string(rune('a'+i%26)), 31) + string(rune('a'+i/26)))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&script, "update add _entente._tcp.example.com. 60 PTR %s\nupdate add %s 60 SRV 0 0 7443 h%d.example.com.\nupdate add %s 60 TXT \"id=%s\"\nupdate add h%d.example.com. 60 A 10.3.0.%d\nsend\n",
			name, name, i, name, id, i, i+1)
	}
	tool(t, script.String(), "nsupdate", "-v", "-y", "hmac-sha512:wide:"+secretWide)
	m := newQuery(dns.Question{Name: "_entente._tcp.example.com.", Qtype: dns.TypePTR, Qclass: dns.ClassINET})
	if r, err := sendQuery(t.Context(), "udp", udpTimeout, server, m); err != nil || !r.Msg.Truncated {
		t.Fatalf("the list fits into a packet (%v); the test proves nothing", err)
	}
	d := find(t, server, "example.com")
	if len(d.Found) != n || len(d.Problems) != 0 || d.Found[0].Instance != "cluster with a long name and a number 0" {
		t.Errorf("%d found, %+v", len(d.Found), d.Problems)
	}
}

func TestZoneFragmentsAreReadByBIND(t *testing.T) {
	t.Parallel()
	s := office()
	s.Instance = `Büro "Köln" v1.2; (main) \ @`
	text, err := Zone(s, "example.com", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "example.com")
	if err := os.WriteFile(file, []byte("$TTL 60\n@ SOA ns.example.com. hostmaster 1 3600 600 86400 60\n@ NS ns\nns A 127.0.0.1\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := tool(t, "", "named-checkzone", "example.com", file); !strings.Contains(out, "OK") {
		t.Errorf("named-checkzone says %s", out)
	}
}

// Two publishers that want the same name at once: one gets it.
func TestOnePublisherWinsAName(t *testing.T) {
	t.Parallel()
	server := bind(t)
	wide := mustKey(t, "wide", "hmac-sha512", secretWide)
	const n = 6
	done := make(chan string, n)
	for i := range n {
		s := office()
		s.Text.ID = peering.ClusterID(strings.Repeat(string(rune('a'+i)), 32))
		s.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)})}
		p := publisher(server, wide, s, "example.com")
		go func() {
			err := error(nil)
			for range 5 {
				if err = p.Publish(context.WithoutCancel(t.Context())); err == nil {
					break
				}
			}
			if err != nil {
				t.Error(err)
			}
			done <- p.status.Instance
		}()
	}
	names := map[string]bool{}
	for range n {
		names[<-done] = true
	}
	d := find(t, server, "example.com")
	if len(names) != n || len(d.Found) != n {
		t.Errorf("names %v, found %+v", names, d)
	}
	ends := map[string]bool{}
	for _, f := range d.Found {
		ends[f.Endpoints[0]] = true
		if len(f.Endpoints) != 1 {
			t.Errorf("%s has %v", f.Instance, f.Endpoints)
		}
	}
	if len(ends) != n {
		t.Errorf("endpoints %v", ends)
	}
}

// leaks reports whether a text has one of the secrets, in any printed form.
func leaks(text string) bool {
	return slices.ContainsFunc([]string{secretWide, secretNarrow, "bytes of a secret", "secret of sixteen", "115 105 120 116", "0x73, 0x69, 0x78", "73697874"}, func(s string) bool {
		return strings.Contains(text, s)
	})
}
