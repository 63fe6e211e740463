package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/controller"
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
	place := controller.Place{Source: v1alpha1.FoundDNS, Where: "example.com"}
	d := &domains{browser: browser, now: func() time.Time { return clock }, log: slog.New(slog.DiscardHandler)}
	if !d.look().Starting[place] {
		t.Error("before it was asked it counts as asked")
	}
	d.began = clock
	clock = clock.Add(domainsStart - time.Second)
	if !d.look().Starting[place] {
		t.Error("it was given up before its time")
	}
	clock = clock.Add(time.Second)
	if d.look().Starting[place] {
		t.Error("what was known of it stays for ever")
	}
	if got := (&domains{}).look(); len(got.Found)+len(got.Starting) != 0 {
		t.Errorf("with discovery off there is %+v", got)
	}
}

// No domain leads this cluster to its API server, its Services, its pods and itself.
func TestWhatIsKeptToItself(t *testing.T) {
	t.Parallel()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.168.1.10"}}},
	}
	a := &agent{
		log:    slog.New(slog.DiscardHandler),
		direct: fake.NewClientBuilder().WithScheme(Scheme()).WithObjects(slice).Build(),
		cfg: Config{
			Kubernetes: &rest.Config{Host: "https://10.96.0.1:443"}, PodIP: netip.MustParseAddr("172.16.3.4"),
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
			AliasPool: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
		},
	}
	forbidden := a.keptToItself(t.Context())
	for text, may := range map[string]bool{
		"10.96.0.1": false, "10.97.5.5": false, "10.244.1.1": false, "172.16.3.4": false, "192.168.1.10": false, "198.18.0.1": false,
		"192.168.1.11": true, "10.96.0.2": true, "203.0.113.5": true,
	} {
		if err := discovery.Dialable(netip.MustParseAddr(text), forbidden...); (err == nil) != may {
			t.Errorf("%s: %v", text, err)
		}
	}
}
