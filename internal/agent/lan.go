package agent

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/peering"
)

// reconcileNodeDiscoveries keeps the NodeDiscovery of the gateway. With discovery on LANs
// off it removes those that there are.
func (a *agent) reconcileNodeDiscoveries(_ context.Context, interfaces []string) error {
	discoveries := &controller.NodeDiscoveries{Client: a.mgr.GetClient(), Now: time.Now, Want: func(ctx context.Context) (*v1alpha1.NodeDiscoverySpec, error) {
		if !a.cfg.DiscoveryLAN {
			return nil, nil //nolint:nilnil // none is wanted
		}
		all, err := endpoints(ctx, a.mgr.GetCache(), &a.cfg)
		if err != nil {
			return nil, err
		}
		expected, err := expectedOnLAN(ctx, a.mgr.GetCache())
		if err != nil {
			return nil, err
		}
		spec := publishedOnLAN(a.service(all), all)
		spec.Interfaces, spec.Expected = interfaces, expected
		return &spec, nil
	}}
	return discoveries.SetupWithManager(a.mgr)
}

// expectedOnLAN returns whom a fabric reports first.
func expectedOnLAN(ctx context.Context, cached ctrlclient.Reader) ([]string, error) {
	var policies v1alpha1.PeeringPolicyList
	if err := cached.List(ctx, &policies, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list peering policies: %w", err)
	}
	var all v1alpha1.ForeignClusterList
	if err := cached.List(ctx, &all, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	return controller.Expected(policies.Items, all.Items), nil
}

// service is what this cluster publishes of itself, on LANs and in DNS.
func (a *agent) service(endpoints []string) discovery.Service {
	s := discovery.NewService(a.source.ID(), a.name(), peering.Protocol, endpoints)
	hash := a.source.Identity().TrustBundle().Hash()
	s.Text.Fingerprint, s.Automatic = hex.EncodeToString(hash[:fingerprintBytes]), a.announces()
	return s
}

func publishedOnLAN(s discovery.Service, endpoints []string) v1alpha1.NodeDiscoverySpec {
	if len(s.Addresses) == 0 {
		why := "this cluster cannot be dialled: set peer.endpoints in its chart's values, or how its Service is reached"
		if len(endpoints) > 0 {
			why = fmt.Sprintf("none of this cluster's endpoints (%s) is an address that others may dial: set peer.endpoints in its chart's values", strings.Join(endpoints, ", "))
		}
		return v1alpha1.NodeDiscoverySpec{NotPublished: peering.Text(why, maxDiscoveryText)}
	}
	out := v1alpha1.PublishedCluster{
		// The host is not the node's: that one has a name of its own on the LAN.
		Instance: s.Instance, Host: s.Host, Port: int32(s.Port), Automatic: s.Automatic,
		ClusterID: string(s.Text.ID), Name: s.Text.Name, API: s.Text.API, Fingerprint: s.Text.Fingerprint,
	}
	for _, addr := range s.Addresses {
		out.Addresses = append(out.Addresses, addr.String())
	}
	return v1alpha1.NodeDiscoverySpec{Publish: &out}
}

// lans is what the fabrics of nodes find on their LANs.
type lans struct {
	reader ctrlclient.Reader
	now    func() time.Time
	log    *slog.Logger
	// kept returns the addresses that nobody else leads to; false is that they are not
	// known yet.
	kept func() ([]netip.Prefix, bool)

	mu sync.Mutex
	// began is when it was looked first.
	began time.Time
	nodes map[string]*nodeReport
}

// nodeReport is when the fabric of a node was heard of. Times are this process's: clocks
// of nodes differ.
type nodeReport struct {
	// report is the time that its last report has, at is when that came. It is zero for
	// the report that was there already when this process looked first.
	report metav1.Time
	at     time.Time
	// told is the problems that were logged.
	told string
}

func (l *lans) look() controller.Looked {
	var list v1alpha1.NodeDiscoveryList
	if err := l.reader.List(context.Background(), &list, ctrlclient.UnsafeDisableDeepCopy); err != nil { //nolint:forbidigo // a cache answers at once
		l.log.Warn("cannot tell what is found on LANs", "err", err)
		return controller.Looked{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.began.IsZero() {
		l.began, l.nodes = now, map[string]*nodeReport{}
	}
	out := controller.Looked{Places: map[controller.Place]bool{}}
	there := map[string]bool{}
	for i := range list.Items {
		nd := &list.Items[i]
		there[nd.Name] = true
		l.lookAt(&out, nd, l.hear(nd, now), now)
	}
	maps.DeleteFunc(l.nodes, func(name string, _ *nodeReport) bool { return !there[name] })
	return out
}

// hear notes what a fabric reported. The lock is held.
func (l *lans) hear(nd *v1alpha1.NodeDiscovery, now time.Time) *nodeReport {
	h := l.nodes[nd.Name]
	switch {
	case h == nil && now == l.began:
		h = &nodeReport{report: nd.Status.ObservedAt}
		l.nodes[nd.Name] = h
	case h == nil:
		h = &nodeReport{}
		l.nodes[nd.Name] = h
		fallthrough
	case !h.report.Equal(&nd.Status.ObservedAt):
		if h.report = nd.Status.ObservedAt; !h.report.IsZero() {
			h.at = now
		}
	}
	if text := strings.Join(nd.Status.Problems, "\n"); text != h.told {
		if h.told = text; text != "" {
			l.log.Warn("discovery on the LANs of a node does not work as it should", "node", nd.Name, "problems", nd.Status.Problems)
		}
	}
	return h
}

// lookAt adds what one fabric finds. What it finds comes from whoever is on its LANs, and
// the fabric itself lives where they reach it: everything is checked again.
func (l *lans) lookAt(out *controller.Looked, nd *v1alpha1.NodeDiscovery, h *nodeReport, now time.Time) {
	since := h.at
	if since.IsZero() {
		since = l.began
	}
	silent := h.at.IsZero() || now.Sub(h.at) >= lanReportLate
	if silent && now.Sub(since) >= lanReportExpires {
		return // what it said is too old to be believed
	}
	for _, name := range nd.Status.Interfaces[:min(len(nd.Status.Interfaces), maxLANInterfaces)] {
		if name != "" && peering.Text(name, maxInterfaceName) == name {
			out.Places[lanPlace(nd.Name, name)] = silent || !controller.LANSettled(&nd.Status)
		}
	}
	kept, known := l.kept()
	seen := nd.Status.ObservedAt
	if !h.at.IsZero() {
		seen = metav1.NewTime(h.at)
	}
	for _, f := range nd.Status.Found[:min(len(nd.Status.Found), maxLANFound)] {
		place := lanPlace(nd.Name, f.Interface)
		id, err := peering.ParseClusterID(f.ClusterID)
		all := dialable(f.Endpoints[:min(len(f.Endpoints), peering.MaxEndpoints)], kept)
		if _, looked := out.Places[place]; !looked || err != nil || !known || len(all) == 0 {
			continue
		}
		out.Found = append(out.Found, controller.Sighted{ID: id, Sighting: v1alpha1.Sighting{
			Source: place.Source, Where: place.Where, Node: place.Node,
			Name: peering.Text(f.Name, maxClusterName), Endpoints: all, Seen: seen,
		}})
	}
}

func lanPlace(node, name string) controller.Place {
	return controller.Place{Source: v1alpha1.FoundLAN, Where: name, Node: node}
}

// lookAll brings together what several sources find.
func lookAll(looks ...func() controller.Looked) func() controller.Looked {
	return func() controller.Looked {
		all := controller.Looked{Places: map[controller.Place]bool{}}
		for _, look := range looks {
			one := look()
			all.Found = append(all.Found, one.Found...)
			maps.Copy(all.Places, one.Places)
		}
		return all
	}
}
