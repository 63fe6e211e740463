package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/peering"
)

// zone is a DNS server of one zone.
type zone struct {
	mu      sync.Mutex
	name    string
	records []dns.RR
}

// serveZone serves a zone on loopback until the test ends, and returns where.
func serveZone(t *testing.T, z *zone) string {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: z}, {Listener: l, Handler: z}} {
		ended := make(chan error, 1)
		go func() { ended <- s.ActivateAndServe() }()
		t.Cleanup(func() {
			if err := errors.Join(s.Shutdown(), <-ended); err != nil {
				t.Error(err)
			}
		})
	}
	return pc.LocalAddr().String()
}

// ServeDNS implements dns.Handler.
func (z *zone) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	exists := false
	for _, rr := range z.records {
		if strings.EqualFold(rr.Header().Name, q.Question[0].Name) {
			exists = true
			if rr.Header().Rrtype == q.Question[0].Qtype {
				m.Answer = append(m.Answer, rr)
			}
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: z.name, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}, Ns: "ns." + z.name, Mbox: "nobody." + z.name, Minttl: 1}}
		if !exists {
			m.Rcode = dns.RcodeNameError
		}
	}
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(opt.UDPSize(), false)
	}
	_ = w.WriteMsg(m)
}

// list has the zone list a cluster by a name, at an address.
func (z *zone) list(label string, id peering.ClusterID, name, address string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	service := discovery.ServiceType + "." + z.name
	instance, host := label+"."+service, "host-"+label+"."+z.name
	header := func(name string, kind uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: 1}
	}
	z.records = append(z.records,
		&dns.PTR{Hdr: header(service, dns.TypePTR), Ptr: instance},
		&dns.SRV{Hdr: header(instance, dns.TypeSRV), Port: 7443, Target: host},
		&dns.TXT{Hdr: header(instance, dns.TypeTXT), Txt: discovery.Text{ID: id, Name: name}.Strings()},
		&dns.A{Hdr: header(host, dns.TypeA), A: net.ParseIP(address)},
	)
}

// TestClustersOfADomainAreHints publishes clusters in a domain: one that is not known, a peer, one
// that takes the peer's name, and this one's API server. They become ForeignClusters without trust,
// except for the last, and go when discovery no longer covers the domain, while the peer stays
// unchanged.
func TestClustersOfADomainAreHints(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	var peer v1alpha1.ForeignCluster
	if err := home.get(ctx, abroadName, &peer); err != nil {
		t.Fatal(err)
	}
	stranger, liar, server := peering.ClusterID(strings.Repeat("s", 32)), peering.ClusterID(strings.Repeat("l", 32)), peering.ClusterID(strings.Repeat("k", 32))
	z := &zone{name: "clusters.example."}
	z.list("workshop", stranger, "workshop", "192.0.2.7")
	z.list("abroad", peering.ClusterID(peer.Spec.ClusterID), abroadName, "192.0.2.8")
	z.list("liar", liar, abroadName, "192.0.2.9")
	z.list("inside", server, "inside", "10.96.0.1")
	z.list("loopback", server, "loopback", "127.0.0.1")

	flags := home.flags
	home.flags = append(slices.Clone(flags), "--discovery-domain=clusters.example", "--discovery-resolver="+serveZone(t, z))
	t.Cleanup(func() { home.flags = flags })
	if err := home.restart(ctx); err != nil {
		t.Fatal(err)
	}

	known := func(ctx context.Context) (map[peering.ClusterID]v1alpha1.ForeignCluster, error) {
		all, err := list[v1alpha1.ForeignClusterList](ctx, home)
		out := map[peering.ClusterID]v1alpha1.ForeignCluster{}
		if err != nil {
			return nil, err
		}
		for _, fc := range all.Items {
			out[peering.ClusterID(fc.Spec.ClusterID)] = fc
		}
		return out, nil
	}
	err := eventually.Is(ctx, later, "what the domain lists to be known", func(ctx context.Context) error {
		all, err := known(ctx)
		if err != nil {
			return err
		}
		for _, id := range []peering.ClusterID{stranger, liar, peering.ClusterID(peer.Spec.ClusterID)} {
			if fc := all[id]; len(fc.Status.Sightings) != 1 || fc.Status.Sightings[0].Location != "clusters.example" {
				return fmt.Errorf("%s has the sightings %+v", id.Short(), fc.Status.Sightings)
			}
		}
		if c := meta.FindStatusCondition(all[liar].Status.Conditions, v1alpha1.ConditionImpostor); c == nil || c.Reason != "NameOfAnother" {
			return fmt.Errorf("the liar has the condition %+v", c)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all, err := known(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hint := all[stranger]
	if hint.Name != "workshop-"+stranger.Short() || hint.Status.Source != v1alpha1.SourceDNS || hint.Spec.TrustBundle != "" || !slices.Equal(hint.Spec.Endpoints, []string{"192.0.2.7:7443"}) {
		t.Errorf("the stranger is %s: %+v, found by %s", hint.Name, hint.Spec, hint.Status.Source)
	}
	if fc, there := all[server]; there {
		t.Errorf("a cluster that is said to be where this one's API server is, is known: %+v", fc.Spec)
	}
	if now := all[peering.ClusterID(peer.Spec.ClusterID)]; !slices.Equal(now.Spec.Endpoints, peer.Spec.Endpoints) || now.Spec.TrustBundle != peer.Spec.TrustBundle || now.Status.Source != peer.Status.Source {
		t.Errorf("the peer was %+v and is %+v", peer.Spec, now.Spec)
	}
	home.flags = flags
	if err := home.restart(ctx); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, later, "clusters of a domain that is no longer queried to go", func(ctx context.Context) error {
		all, err := known(ctx)
		if err != nil {
			return err
		}
		if len(all) != 1 || len(all[peering.ClusterID(peer.Spec.ClusterID)].Status.Sightings) != 0 {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
