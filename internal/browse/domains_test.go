package browse

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/sightings"
)

// What is known of a domain that cannot be asked stands for a while after a start, and
// then it goes.
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
	place := sightings.Place{Source: v1alpha1.FoundDNS, Where: "example.com"}
	d := &Domains{
		Browser: browser, Now: func() time.Time { return clock }, Log: slog.New(slog.DiscardHandler),
		Dialable: func(e []string) []string { return e },
	}
	if !d.Look().Places[place] {
		t.Error("before it was asked it counts as asked")
	}
	d.began = clock
	clock = clock.Add(domainsStart - time.Second)
	if !d.Look().Places[place] {
		t.Error("it was given up before its time")
	}
	clock = clock.Add(time.Second)
	if d.Look().Places[place] {
		t.Error("what was known of it stays for ever")
	}
	if got := discovery.DialableEndpoints([]string{"10.96.0.1:7443", "192.0.2.7:7443", "[::1]:7443", "office.example:7443"}, netip.MustParsePrefix("10.96.0.0/16")); !slices.Equal(got, []string{"192.0.2.7:7443"}) {
		t.Errorf("of the endpoints %v may be dialled", got)
	}
	if got := (&Domains{}).Look(); len(got.Found)+len(got.Places) != 0 {
		t.Errorf("with discovery off there is %+v", got)
	}
}
