package browse

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/sightings"
	"github.com/entente-dev/entente/peering"
)

// LANs collects the clusters that the fabrics of nodes find on their LANs.
type LANs struct {
	Reader ctrlclient.Reader
	// Dialable is the same as in [Domains].
	Dialable func(endpoints []string) []string
	Now      func() time.Time
	Log      *slog.Logger

	mu sync.Mutex
	// began is when Look was first called.
	began time.Time
	nodes map[string]*nodeReport
}

// nodeReport is when the fabric of a node last reported. Times are of this process's clock, as
// those of nodes differ.
type nodeReport struct {
	// report is the time in the last report, and at when it arrived. at is zero for a report that
	// existed when this process first looked.
	report metav1.Time
	at     time.Time
	// logged has the problems that were logged last.
	logged string
}

// Snapshot returns what was found.
func (l *LANs) Snapshot() sightings.Snapshot {
	var list v1alpha1.NodeDiscoveryList
	if err := l.Reader.List(context.Background(), &list, ctrlclient.UnsafeDisableDeepCopy); err != nil { //nolint:forbidigo // a cache returns at once
		l.Log.Warn("cannot read what is found on LANs", "err", err)
		return sightings.Snapshot{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Now()
	if l.began.IsZero() {
		l.began, l.nodes = now, map[string]*nodeReport{}
	}
	out := sightings.Snapshot{Places: map[sightings.Place]bool{}}
	there := map[string]bool{}
	for i := range list.Items {
		nd := &list.Items[i]
		there[nd.Name] = true
		l.add(&out, nd, l.record(nd, now), now)
	}
	maps.DeleteFunc(l.nodes, func(name string, _ *nodeReport) bool { return !there[name] })
	return out
}

// record records that a fabric reported. The lock is held.
func (l *LANs) record(nd *v1alpha1.NodeDiscovery, now time.Time) *nodeReport {
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
	if text := strings.Join(nd.Status.Problems, "\n"); text != h.logged {
		if h.logged = text; text != "" {
			l.Log.Warn("discovery on the LANs of a node does not work as it should", "node", nd.Name, "problems", nd.Status.Problems)
		}
	}
	return h
}

// add adds what one fabric finds. Any machine on its LANs may have sent that, and the fabric itself
// can be reached from there, so everything is validated again.
func (l *LANs) add(out *sightings.Snapshot, nd *v1alpha1.NodeDiscovery, h *nodeReport, now time.Time) {
	since := h.at
	if since.IsZero() {
		since = l.began
	}
	silent := h.at.IsZero() || now.Sub(h.at) >= lanReportLate
	if silent && now.Sub(since) >= lanReportExpires {
		return // its report has expired
	}
	for _, name := range nd.Status.Interfaces[:min(len(nd.Status.Interfaces), MaxInterfaces)] {
		if name != "" && peering.Text(name, MaxInterfaceName) == name {
			out.Places[lanPlace(nd.Name, name)] = silent || !sightings.LANConverged(&nd.Status)
		}
	}
	seen := nd.Status.ObservedAt
	if !h.at.IsZero() {
		seen = metav1.NewTime(h.at)
	}
	for _, f := range nd.Status.Clusters[:min(len(nd.Status.Clusters), MaxFound)] {
		place := lanPlace(nd.Name, f.Interface)
		id, err := peering.ParseClusterID(f.ClusterID)
		all := l.Dialable(f.Endpoints[:min(len(f.Endpoints), peering.MaxEndpoints)])
		if _, looked := out.Places[place]; !looked || err != nil || len(all) == 0 {
			continue
		}
		out.Found = append(out.Found, sightings.Sighted{ID: id, Sighting: v1alpha1.Sighting{
			Source: place.Source, Location: place.Where, Node: place.Node,
			Name: peering.Text(f.Name, MaxClusterName), Endpoints: all, LastSeenTime: seen,
		}})
	}
}

func lanPlace(node, name string) sightings.Place {
	return sightings.Place{Source: v1alpha1.SourceLAN, Where: name, Node: node}
}

// All merges what several sources find.
func All(looks ...func() sightings.Snapshot) func() sightings.Snapshot {
	return func() sightings.Snapshot {
		all := sightings.Snapshot{Places: map[sightings.Place]bool{}}
		for _, look := range looks {
			one := look()
			all.Found = append(all.Found, one.Found...)
			maps.Copy(all.Places, one.Places)
		}
		return all
	}
}

// Expected returns the clusters that a fabric reports first.
func Expected(ctx context.Context, cached ctrlclient.Reader) ([]string, error) {
	var policies v1alpha1.PeeringPolicyList
	if err := cached.List(ctx, &policies, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list peering policies: %w", err)
	}
	var all v1alpha1.ForeignClusterList
	if err := cached.List(ctx, &all, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	return sightings.Expected(policies.Items, all.Items), nil
}
