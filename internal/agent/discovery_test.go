package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/dnssd"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/kube"
)

// No domain leads this cluster to its API server, its Services, its pods and itself.
func TestAddressesOfThisClusterAreNotDialable(t *testing.T) {
	t.Parallel()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"192.168.1.10"}}},
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.245.0.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "192.168.1.20"}}},
	}
	services := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.98.0.0/16", "fd00:98::/108"}}}
	reader := func(o ...ctrlclient.Object) ctrlclient.WithWatch {
		return fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(o...).Build()
	}
	cfg := &Config{
		Kubernetes: &rest.Config{Host: "https://10.96.0.1:443"}, PodIP: netip.MustParseAddr("172.16.3.4"),
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		AliasPool: []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")},
	}
	forbidden, err := ownRanges(t.Context(), reader(node), reader(slice, services), reservedBy(cfg, reader(services)), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for text, may := range map[string]bool{
		"10.96.0.1": false, "10.97.5.5": false, "10.244.1.1": false, "172.16.3.4": false, "192.168.1.10": false, "198.18.0.1": false,
		"10.245.0.9": false, "192.168.1.20": false, "10.98.7.7": false, "fd00:98::9": false, "64:ff9b::10.98.7.7": false,
		"192.168.1.11": true, "10.96.0.2": true, "203.0.113.5": true,
	} {
		if err := discovery.Dialable(netip.MustParseAddr(text), forbidden...); (err == nil) != may {
			t.Errorf("%s: %v", text, err)
		}
	}

	// An API server without ServiceCIDRs is fine, and one that does not respond is not.
	for want, err := range map[string]error{
		"":                            &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "networking.k8s.io", Kind: "ServiceCIDR"}},
		"list service CIDRs: timeout": errors.New("timeout"),
	} {
		old := interceptor.NewClient(reader(slice), interceptor.Funcs{
			List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
				if _, ok := list.(*networkingv1.ServiceCIDRList); ok {
					return err
				}
				return c.List(ctx, list, opts...)
			},
		})
		prefixes, err := ownRanges(t.Context(), reader(node), old, reservedBy(cfg, old), cfg)
		if want == "" && (err != nil || !slices.Contains(prefixes, netip.MustParsePrefix("10.97.0.0/16"))) {
			t.Errorf("without the kind: %v, %v", prefixes, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func reservedBy(cfg *Config, direct ctrlclient.Reader) controller.Reserved {
	return servicePrefixes(cfg.ServiceCIDRs, direct, slog.New(slog.DiscardHandler))
}

// What discovery found is checked again when it is dialled.
func TestDialableAddressesAreRefreshed(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	var kept []netip.Prefix
	var err error
	asked := 0
	a := &agent{own: &lastKnown[[]netip.Prefix]{
		now: func() time.Time { return clock }, log: slog.New(slog.DiscardHandler),
		ask: func(context.Context) ([]netip.Prefix, error) { asked++; return kept, err },
	}}
	err = errors.New("the API server is away")
	if a.mayDial("192.0.2.7:7443") {
		t.Error("it may be dialled before it is known what is kept to itself")
	}
	if a.mayDial("192.0.2.7:7443") || asked > 1 {
		t.Errorf("an API server that is away was asked %d times at once", asked)
	}
	err = nil
	clock = clock.Add(lookupRetry)
	for endpoint, want := range map[string]bool{"192.0.2.7:7443": true, "127.0.0.1:7443": false, "office.example:7443": false} {
		if a.mayDial(endpoint) != want {
			t.Errorf("%s may be dialled: %t", endpoint, !want)
		}
	}
	kept = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	clock = clock.Add(lookupInterval)
	if a.mayDial("192.0.2.7:7443") {
		t.Error("it may be dialled where a prefix of this cluster is now")
	}
}

// One malformed value leaves the others in force, and none of them ends the agent.
func TestMalformedDomainsAndResolversAreProblems(t *testing.T) {
	t.Parallel()
	const off = "discovery by DNS is off"
	many := slices.Repeat([]string{"192.0.2.1"}, 9)
	for name, tc := range map[string]struct {
		domains, resolvers []string
		asked              []string
		problems           []string
	}{
		"all is well":                {domains: []string{"example.com", "lan"}, resolvers: []string{"192.0.2.1", "[2001:db8::1]:53"}, asked: []string{"example.com", "lan"}},
		"one domain":                 {domains: []string{"bad domain!", "example.com"}, asked: []string{"example.com"}, problems: []string{`discovery.domains: domain "bad domain!" is not a DNS name`}},
		"an address as a domain":     {domains: []string{"192.0.2.1", "example.com"}, asked: []string{"example.com"}, problems: []string{`discovery.domains: domain "192.0.2.1" is not`}},
		"all domains":                {domains: []string{"a b"}, problems: []string{`discovery.domains: domain "a b"`, off}},
		"one resolver":               {domains: []string{"example.com"}, resolvers: []string{"foo", "192.0.2.1"}, asked: []string{"example.com"}, problems: []string{`discovery.resolvers: "foo" is neither an address nor ADDRESS:PORT`}},
		"the port of a resolver":     {domains: []string{"example.com"}, resolvers: []string{"192.0.2.1:0", "192.0.2.1:99999", "2001:db8::1"}, asked: []string{"example.com"}, problems: []string{`"192.0.2.1:0": its port is not from 1 to 65535`, `"192.0.2.1:99999": its port`}},
		"no other is asked for it":   {domains: []string{"example.com"}, resolvers: []string{"foo"}, problems: []string{"discovery.resolvers", off}},
		"a resolver without domains": {resolvers: []string{"192.0.2.1:99999"}, problems: []string{`discovery.resolvers: "192.0.2.1:99999": its port`}},
		"too many resolvers":         {domains: []string{"example.com"}, resolvers: many, problems: []string{off + ": discovery.resolvers: 9 resolvers"}},
		"too many domains":           {domains: slices.Repeat([]string{"example.com"}, dnssd.MaxDomains+1), problems: []string{off + ": discovery.domains: 1025 domains"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &agent{cfg: Config{ClusterName: "office"}, source: newSource(t), log: slog.New(slog.DiscardHandler), mgr: runnables{}, announces: func() bool { return false }}
			if err := a.discovery(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := a.browseDomains(t.Context(), domainsConfig{tc.domains, tc.resolvers}); err != nil {
				t.Fatal(err)
			}
			var asked []string
			if a.found.Browser != nil {
				for _, d := range a.found.Browser.Domains() {
					asked = append(asked, d.Name)
				}
			}
			self := a.adminSelf()
			if !slices.Equal(asked, tc.asked) || len(self.Problems) != len(tc.problems) {
				t.Fatalf("it browses %q with problems %q", asked, self.Problems)
			}
			for i, want := range tc.problems {
				if !strings.Contains(self.Problems[i], want) {
					t.Errorf("the problem is %q, want %q", self.Problems[i], want)
				}
			}
		})
	}
}

// runnables is a manager that runs nothing.
type runnables struct{ uncached }

func (runnables) Add(manager.Runnable) error { return nil }

// A resolver's error is shown to administrators.
func TestAdminInfoHasTheStateOfDomains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		browser, err := dnssd.NewBrowser(dnssd.Config{Domains: []string{"a.example", "b.example"}, Exchange: func(_ context.Context, q dns.Question) (dnssd.Reply, error) {
			if strings.HasSuffix(q.Name, ".b.example.") {
				return dnssd.Reply{}, errors.New("SERVFAIL")
			}
			return dnssd.Reply{Msg: &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Rcode: dns.RcodeNameError}}}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		go func() { _ = browser.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		states := domainStates(browser)
		if len(states) != 2 {
			t.Fatalf("there are %+v", states)
		}
		if a := states[0]; a.Domain != "a.example" || a.Error != "" || a.Unlisted || !a.Since.IsZero() || time.Since(a.Answered) > 16*time.Minute {
			t.Errorf("the state of a domain that responds is %+v", a)
		}
		if b := states[1]; b.Domain != "b.example" || b.Error != "SERVFAIL" || !b.Unlisted || !b.Since.Equal(began) || !b.Answered.IsZero() {
			t.Errorf("the state of a domain that fails since %s is %+v", began, b)
		}
		if list := domainStates(nil); list != nil {
			t.Errorf("with discovery off there are %+v", list)
		}
	})
}
