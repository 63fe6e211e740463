package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/peering"
)

// nodeDiscoveries builds what keeps the NodeDiscovery of the gateway. With discovery on
// LANs off it removes those that there are.
func (a *agent) nodeDiscoveries() *controller.NodeDiscoveries {
	return &controller.NodeDiscoveries{Client: a.mgr.GetClient(), Now: time.Now, Want: func(ctx context.Context) (*v1alpha1.NodeDiscoverySpec, error) {
		if !a.cfg.DiscoveryLAN {
			return nil, nil
		}
		all, err := endpoints(ctx, a.mgr.GetCache(), &a.cfg)
		if err != nil {
			return nil, err
		}
		own := ownCluster{
			id: a.source.ID(), name: a.name(), protocol: controller.Protocol, bundle: a.source.Identity().Bundle(),
			endpoints: all, automatic: a.announces(),
		}
		spec := own.publish()
		spec.Interfaces = a.cfg.DiscoveryInterfaces
		return &spec, nil
	}}
}

// ownCluster is what this cluster can publish of itself.
type ownCluster struct {
	id        peering.ClusterID
	name      string
	protocol  uint32
	bundle    []byte
	endpoints []string
	automatic bool
}

// publish returns what is published on LANs: the addresses of the port that most of
// them have, as a service has one port.
func (c ownCluster) publish() v1alpha1.NodeDiscoverySpec {
	port, addresses := mostUsual(c.endpoints)
	if len(addresses) == 0 {
		why := "nobody can dial this cluster: set peer.endpoints in its chart's values, or how its Service is reached"
		if len(c.endpoints) > 0 {
			why = fmt.Sprintf("none of this cluster's endpoints (%s) is an address that others may dial: set peer.endpoints in its chart's values", strings.Join(c.endpoints, ", "))
		}
		return v1alpha1.NodeDiscoverySpec{NotPublished: peering.Text(why, maxDiscoveryText)}
	}
	sum := sha256.Sum256(c.bundle)
	return v1alpha1.NodeDiscoverySpec{Publish: &v1alpha1.PublishedCluster{
		// The host is not the node's: that one has a name of its own on the LAN.
		Instance: peering.Text(c.name, discovery.MaxLabel), Host: "entente-" + c.id.Short(),
		Port: int32(port), Addresses: addresses,
		ClusterID: string(c.id), Name: c.name, API: strconv.FormatUint(uint64(c.protocol), 10),
		Fingerprint: hex.EncodeToString(sum[:fingerprintBytes]), Automatic: c.automatic,
	}}
}

// mostUsual returns the port that most endpoints have, of those that are addresses that
// others may dial, and their addresses. Of ports that are as usual the first counts.
func mostUsual(endpoints []string) (uint16, []string) {
	var all []netip.AddrPort
	count := map[uint16]int{}
	for _, text := range endpoints {
		e, err := netip.ParseAddrPort(text)
		if err != nil || discovery.Dialable(e.Addr()) != nil || slices.Contains(all, e) {
			continue
		}
		all = append(all, e)
		count[e.Port()]++
	}
	if len(all) == 0 {
		return 0, nil
	}
	port := slices.MaxFunc(all, func(a, b netip.AddrPort) int { return cmp.Compare(count[a.Port()], count[b.Port()]) }).Port()
	var out []string
	for _, e := range all {
		if text := e.Addr().Unmap().String(); e.Port() == port && len(out) < discovery.MaxAddresses {
			out = append(out, text)
		}
	}
	return port, out
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
	nodes map[string]*heardNode
}

// heardNode is when the fabric of a node was heard of. Times are this process's: clocks
// of nodes differ.
type heardNode struct {
	// report is the time that its last report has, at is when that came. It is zero for
	// the report that was there already when this process looked first.
	report metav1.Time
	at     time.Time
	// told is the problems that were logged.
	told string
}

// watch has wake called whenever what a fabric reports changes.
func (l *lans) watch(ctx context.Context, informers cache.Informers, wake func()) error {
	informer, err := informers.GetInformer(ctx, &v1alpha1.NodeDiscovery{})
	if err != nil {
		return fmt.Errorf("watch node discoveries: %w", err)
	}
	poke := func(any) { wake() }
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: poke, DeleteFunc: poke, UpdateFunc: func(_, now any) { poke(now) },
	}); err != nil {
		return fmt.Errorf("watch node discoveries: %w", err)
	}
	return nil
}

// look returns what is found now.
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
		l.began, l.nodes = now, map[string]*heardNode{}
	}
	out := controller.Looked{Places: map[controller.Place]bool{}}
	there := map[string]bool{}
	for i := range list.Items {
		nd := &list.Items[i]
		there[nd.Name] = true
		l.lookAt(&out, nd, l.hear(nd, now), now)
	}
	maps.DeleteFunc(l.nodes, func(name string, _ *heardNode) bool { return !there[name] })
	return out
}

// hear notes what a fabric reported. The lock is held.
func (l *lans) hear(nd *v1alpha1.NodeDiscovery, now time.Time) *heardNode {
	h := l.nodes[nd.Name]
	switch {
	case h == nil && now == l.began:
		h = &heardNode{report: nd.Status.ObservedAt}
		l.nodes[nd.Name] = h
	case h == nil:
		h = &heardNode{}
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
// the fabric itself lives where they reach it: it is all looked at again.
func (l *lans) lookAt(out *controller.Looked, nd *v1alpha1.NodeDiscovery, h *heardNode, now time.Time) {
	since := h.at
	if since.IsZero() {
		since = l.began
	}
	silent := h.at.IsZero() || now.Sub(h.at) >= lanSilent
	if silent && now.Sub(since) >= lanStands {
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
