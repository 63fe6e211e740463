package browse

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/sightings"
)

// What is known about a domain that cannot be asked stays for a while after a start, and then
// expires.
func TestADomainThatCannotBeAskedIsBelievedForAWhile(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	browser, err := dnssd.NewBrowser(dnssd.Config{
		Domains: []string{"example.com"},
		Exchange: func(context.Context, dns.Question) (dnssd.Reply, error) {
			return dnssd.Reply{}, errors.New("no resolver answers")
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	place := sightings.Place{Source: v1alpha1.SourceDNS, Where: "example.com"}
	d := &Domains{
		Browser: browser, Now: func() time.Time { return clock }, Log: slog.New(slog.DiscardHandler),
		Dialable: func(e []string) []string { return e },
	}
	if !d.Snapshot().Places[place] {
		t.Error("before it was asked it counts as asked")
	}
	d.began = clock
	clock = clock.Add(domainsStart - time.Second)
	if !d.Snapshot().Places[place] {
		t.Error("it expired too early")
	}
	clock = clock.Add(time.Second)
	if d.Snapshot().Places[place] {
		t.Error("what was known about it never expires")
	}
	if got := discovery.DialableEndpoints([]string{"10.96.0.1:7443", "192.0.2.7:7443", "[::1]:7443", "office.example:7443"}, netip.MustParsePrefix("10.96.0.0/16")); !slices.Equal(got, []string{"192.0.2.7:7443"}) {
		t.Errorf("of the endpoints %v may be dialled", got)
	}
	if got := (&Domains{}).Snapshot(); len(got.Found)+len(got.Places) != 0 {
		t.Errorf("with discovery off there is %+v", got)
	}
}

// What is wrong with a resolver is reported whether or not a domain is asked by it.
func TestProblemsOfResolversNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	const port = "its port is not from 1 to 65535"
	for name, tc := range map[string]struct {
		resolver string
		want     string
	}{
		"an address":                   {resolver: "192.0.2.53"},
		"an IPv6 address":              {resolver: "2001:db8::53"},
		"with a port":                  {resolver: "[2001:db8::53]:65535"},
		"a port above the limit":       {"192.0.2.53:65536", `"192.0.2.53:65536": ` + port},
		"a port far above the limit":   {"[2001:db8::53]:99999999999999999999", port},
		"port 0":                       {"192.0.2.53:0", `"192.0.2.53:0": ` + port},
		"a name":                       {"ns.example.com:53", `"ns.example.com:53" is neither an address nor ADDRESS:PORT`},
		"a port that is not a number":  {"192.0.2.53:dns", "neither an address nor ADDRESS:PORT"},
		"brackets around IPv4":         {"[192.0.2.53]:53", "neither an address nor ADDRESS:PORT"},
		"characters of a terminal":     {"\x1b[2J", "neither an address nor ADDRESS:PORT"},
		"an IPv6 address, no brackets": {"2001:db8::53:99999", "neither an address nor ADDRESS:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Without a domain, discovery is not on.
			browser, problems := NewBrowser(nil, []string{tc.resolver}, func(dnssd.Domain) {})
			shown := strings.Join(problems, "\n")
			if browser != nil || len(problems) > 1 || (shown == "") != (tc.want == "") || !strings.Contains(shown, tc.want) || strings.Contains(shown, "\x1b") {
				t.Errorf("problems %q, want %q", shown, tc.want)
			}
		})
	}
}
