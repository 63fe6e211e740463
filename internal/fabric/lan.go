package fabric

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/mdns"
	"github.com/entente-dev/entente/internal/browse"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/sightings"
	"github.com/entente-dev/entente/peering"
)

const (
	lanStatusEvery = time.Minute
	lanStatusPause = time.Second
	// lanResync is how often the interfaces of the responder are read: it does not notify of
	// changes.
	lanResync = 5 * time.Second
	// lanRetry is the pause before a responder that failed is started again.
	lanRetry = 10 * time.Second
	// lanStart is how long a responder may take to find its interfaces before it counts as one
	// without any.
	lanStart, lanStartPoll = 2 * time.Second, 50 * time.Millisecond
)

// responder is the part of a running [mdns.Responder] that a node uses.
type responder interface {
	Publish(services []discovery.Service) error
	Found() []discovery.Found
	Changed() <-chan struct{}
	reporter
}

// reporter returns the state of discovery on the links of a node.
type reporter interface {
	Stats() map[string]mdns.Stats
	Conflicts() []mdns.Conflict
}

// respond makes a responder on some interfaces, which run runs.
type respond func(interfaces []string) (r responder, run func(context.Context) error)

// nodeLAN publishes this cluster on the LANs of a node and searches for others there, as
// long as the node has a NodeDiscovery. Without one there is no socket.
type nodeLAN struct {
	node    string
	client  client.Client
	respond respond
	log     *slog.Logger

	// on is nil while no responder runs.
	on *listening
	// last is the status that was last written, at wrote; nil means unknown.
	last  *v1alpha1.NodeDiscoveryStatus
	wrote time.Time
	// limit is nil until the first write.
	limit *rate.Limiter
}

// listening is a responder that runs.
type listening struct {
	responder
	interfaces []string
	publish    *v1alpha1.PublishedCluster
	since      time.Time
	stop       context.CancelFunc
	done       chan error
	// failed is why it ended, refused why it does not publish this cluster.
	failedAt        time.Time
	failed, refused error
}

// runLAN runs discovery on the LANs of a node until ctx ends. It has a watch of its own: if
// the kind or the right to read it is missing, tunnels go on.
func runLAN(ctx context.Context, cfg Config, mapper meta.RESTMapper, respond respond) error {
	objects, err := cache.New(cfg.Kubernetes, cache.Options{
		Scheme: kube.Scheme(), Mapper: mapper,
		ByObject: map[client.Object]cache.ByObject{
			// Only that of its own node: updates of others cost it no request.
			&v1alpha1.NodeDiscovery{}: {Field: fields.OneTermEqualSelector("metadata.name", cfg.Node)},
		},
		DefaultTransform: cache.TransformStripManagedFields(),
	})
	if err != nil {
		return fmt.Errorf("watch node discoveries: %w", err)
	}
	c, err := client.New(cfg.Kubernetes, client.Options{
		Scheme: kube.Scheme(), Mapper: mapper, Cache: &client.CacheOptions{Reader: objects},
	})
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	n := &nodeLAN{node: cfg.Node, client: c, log: cfg.Log, respond: respond}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return objects.Start(ctx) })
	tasks.Go(func() error {
		kick := notify.New()
		for {
			_, err := kube.OnChange(ctx, objects, &v1alpha1.NodeDiscovery{}, specChanged, kick.Notify)
			if err == nil {
				break
			}
			if ctx.Err() == nil {
				cfg.Log.Warn("no discovery on the LANs of this node", "err", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(lanStatusEvery):
			}
		}
		n.follow(ctx, kick)
		return nil
	})
	return tasks.Wait()
}

// specChanged reports whether an update of a NodeDiscovery changes its spec or deletes it.
func specChanged(before, after any) bool {
	was, is := before.(*v1alpha1.NodeDiscovery), after.(*v1alpha1.NodeDiscovery)
	return was.Generation != is.Generation || !is.DeletionTimestamp.IsZero()
}

// multicastDNS makes responders of Multicast DNS.
func multicastDNS(log *slog.Logger) respond {
	return func(interfaces []string) (responder, func(context.Context) error) {
		r := mdns.New(mdns.Config{Interface: mdns.NamedInterfaces(interfaces), Log: log})
		return r, r.Run
	}
}

// follow reconciles with the NodeDiscovery until ctx ends. Then, and when the NodeDiscovery is gone, it
// sends goodbyes.
func (n *nodeLAN) follow(ctx context.Context, kick <-chan struct{}) {
	defer n.end()
	for ctx.Err() == nil {
		wait := n.step(ctx)
		var changed <-chan struct{}
		var done <-chan error
		if n.on != nil {
			changed, done = n.on.Changed(), n.on.done
		}
		select {
		case <-ctx.Done():
		case <-kick:
		case <-time.After(wait):
		case <-changed:
		case err := <-done:
			n.ended(ctx, err)
		}
	}
}

// step does what is due and returns after how long to call it again without an event.
func (n *nodeLAN) step(ctx context.Context) time.Duration {
	var nd v1alpha1.NodeDiscovery
	err := n.client.Get(ctx, client.ObjectKey{Name: n.node}, &nd)
	switch {
	case client.IgnoreNotFound(err) != nil:
		if ctx.Err() == nil {
			n.log.Warn("cannot read the NodeDiscovery of this node, keeping discovery on its LANs as it is", "err", err)
		}
		return lanResync
	case err != nil || !nd.DeletionTimestamp.IsZero():
		n.end()
		return math.MaxInt64 // its creation is an event
	}
	n.listen(ctx, &nd.Spec)
	return n.report(ctx, &nd)
}

// end stops the responder, if one runs, which sends goodbyes.
func (n *nodeLAN) end() {
	n.last = nil
	if n.on == nil {
		return
	}
	n.on.stop()
	if n.on.failed == nil {
		if err := <-n.on.done; err != nil {
			n.log.Warn("discovery on the LANs of this node ended", "err", err)
		}
	}
	n.on = nil
}

// ended notes that the responder ended.
func (n *nodeLAN) ended(ctx context.Context, err error) {
	if err == nil {
		err = errors.New("it ended")
	}
	if ctx.Err() == nil {
		n.log.Warn("no discovery on the LANs of this node, trying again", "err", err)
	}
	n.on.stop()
	n.on.failed, n.on.failedAt = err, time.Now()
}

func (n *nodeLAN) listen(ctx context.Context, spec *v1alpha1.NodeDiscoverySpec) {
	if n.on != nil && (!slices.Equal(n.on.interfaces, spec.Interfaces) || n.on.failed != nil && time.Since(n.on.failedAt) >= lanRetry) {
		n.end()
	}
	if n.on == nil {
		r, run := n.respond(spec.Interfaces)
		ctx, stop := context.WithCancel(ctx)
		n.on = &listening{responder: r, interfaces: slices.Clone(spec.Interfaces), since: time.Now(), stop: stop, done: make(chan error, 1)}
		go func(done chan<- error) { done <- run(ctx) }(n.on.done)
	}
	if equality.Semantic.DeepEqual(spec.Publish, n.on.publish) {
		return
	}
	services, err := servicesOf(spec.Publish)
	if err == nil {
		err = n.on.Publish(services)
	}
	n.on.publish, n.on.refused = spec.Publish.DeepCopy(), err
}

// Published returns what a node publishes of this cluster, or why it publishes nothing if no address
// can be dialled by others. endpoints are all those of the cluster.
func Published(s discovery.Service, endpoints []string) v1alpha1.NodeDiscoverySpec {
	if len(s.Addresses) == 0 {
		why := "this cluster cannot be dialled: set peer.endpoints in its chart's values, or how its Service is reached"
		if len(endpoints) > 0 {
			why = fmt.Sprintf("none of this cluster's endpoints (%s) is an address that others may dial: set peer.endpoints in its chart's values", strings.Join(endpoints, ", "))
		}
		return v1alpha1.NodeDiscoverySpec{NotPublishedMessage: peering.Text(why, browse.MaxText)}
	}
	out := v1alpha1.PublishedCluster{
		// The host name is not that of the node, which has its own name on the LAN.
		Instance: s.Instance, Host: s.Host, Port: int32(s.Port), Automatic: s.Automatic,
		ClusterID: string(s.Text.ID), Name: s.Text.Name, API: s.Text.API, Fingerprint: s.Text.Fingerprint,
	}
	for _, addr := range s.Addresses {
		out.Addresses = append(out.Addresses, addr.String())
	}
	return v1alpha1.NodeDiscoverySpec{Publish: &out}
}

// servicesOf returns the services to publish.
func servicesOf(p *v1alpha1.PublishedCluster) ([]discovery.Service, error) {
	if p == nil {
		return nil, nil
	}
	s := discovery.Service{
		Instance: p.Instance, Host: p.Host, Port: uint16(p.Port), Automatic: p.Automatic,
		Text: discovery.Text{ID: peering.ClusterID(p.ClusterID), Name: p.Name, API: p.API, Fingerprint: p.Fingerprint},
	}
	for _, text := range p.Addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", text, err)
		}
		s.Addresses = append(s.Addresses, addr)
	}
	if len(s.Addresses) == 0 {
		return nil, errors.New("no address to publish")
	}
	return []discovery.Service{s}, s.Check()
}

// report writes the status when it changed, and each minute; at most once a second, and
// less often if it changes all the time. It returns after how long to call it again.
func (n *nodeLAN) report(ctx context.Context, nd *v1alpha1.NodeDiscovery) time.Duration {
	on, now := n.on, time.Now()
	age := now.Sub(on.since)
	interfaces := on.Stats()
	if len(interfaces) == 0 && on.failed == nil && age < lanStart {
		return lanStartPoll
	}
	before := nd.Status.Clusters
	if n.last != nil {
		before = n.last.Clusters
	}
	status := lanStatus(on, before, nd.Spec.PreferredClusterIDs)
	convergedAt := on.since.Add(sightings.LANConvergence + time.Second) // the status has times in seconds
	converged := on.failed == nil && !now.Before(convergedAt) && n.wrote.Before(convergedAt)
	if n.last != nil && !converged && now.Sub(n.wrote) < lanStatusEvery && equality.Semantic.DeepEqual(*n.last, status) {
		wait := min(lanResync, n.wrote.Add(lanStatusEvery).Sub(now))
		if now.Before(convergedAt) {
			wait = min(wait, convergedAt.Sub(now))
		}
		return wait
	}
	if pause := n.wrote.Add(lanStatusPause).Sub(now); pause > 0 {
		return pause
	}
	if n.limit == nil {
		n.limit = rate.NewLimiter(rate.Every(lanStatusPace), lanStatusBurst)
	}
	room := n.limit.ReserveN(now, 1)
	if pause := room.DelayFrom(now); pause > 0 {
		room.CancelAt(now)
		return pause
	}
	n.wrote = now
	if err := n.write(ctx, nd, status, now); err != nil {
		n.last = nil
		if client.IgnoreNotFound(err) != nil && ctx.Err() == nil {
			n.log.Warn("cannot report what is found on the LANs of this node", "err", err)
		}
		return lanStatusPause
	}
	n.last = &status
	return min(lanResync, lanStatusEvery)
}

// write replaces the status. It sends every field: the cached status may be older than
// the last write, and a patch against it would leave out fields that changed back.
func (n *nodeLAN) write(ctx context.Context, nd *v1alpha1.NodeDiscovery, s v1alpha1.NodeDiscoveryStatus, now time.Time) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"interfaces": s.Interfaces, "clusters": s.Clusters, "problems": s.Problems, "since": s.Since, "observedAt": metav1.NewTime(now),
	}})
	if err != nil {
		return err
	}
	return n.client.Status().Patch(ctx, nd, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fabricManager))
}

// lanStatus returns the status without the time. before are the clusters that were found
// before, expected those that come first.
func lanStatus(on *listening, before []v1alpha1.DiscoveredCluster, expected []string) v1alpha1.NodeDiscoveryStatus {
	var out v1alpha1.NodeDiscoveryStatus
	problem := func(format string, args ...any) {
		out.Problems = append(out.Problems, peering.Text(fmt.Sprintf(format, args...), browse.MaxText))
	}
	if on.refused != nil {
		problem("this cluster cannot be published: %v", on.refused)
	}
	if on.failed != nil {
		problem("no Multicast DNS on this node: %v: another process may have UDP port 5353 for itself; it is tried again", on.failed)
		return out
	}
	out.Since = new(metav1.NewTime(on.since))
	for name := range on.Stats() {
		if peering.Text(name, browse.MaxInterfaceName) == name {
			out.Interfaces = append(out.Interfaces, name)
		}
	}
	slices.Sort(out.Interfaces)
	out.Interfaces = out.Interfaces[:min(len(out.Interfaces), browse.MaxInterfaces)]
	if len(out.Interfaces) == 0 {
		problem("no network interface of this node is up, has an address, can multicast and is one of those that are configured: see discovery.lan.interfaces of the chart")
	}
	for _, text := range conflictsOnLAN(on.Conflicts(), time.Now()) {
		problem("%s", text)
	}
	out.Clusters = foundOnLAN(on.Found(), out.Interfaces, before, expected)
	return out
}

// conflictsOnLAN returns texts about other machines that announce this cluster's name or ID. A node of this
// cluster that hands over may do so for up to a minute.
func conflictsOnLAN(list []mdns.Conflict, now time.Time) (out []string) {
	for _, c := range list {
		lasts := c.Last.Sub(c.Since) >= conflictLasts || c.ID && now.Sub(c.Since) >= conflictLasts
		if len(out) == maxLANConflicts || c.Renamed == "" && (!lasts || now.Sub(c.Last) >= conflictEnds) {
			continue
		}
		what, then := "this cluster's name", "it is not published under it meanwhile"
		switch {
		case c.ID:
			what, then = "this cluster's ID under the name", "others may look for it there"
		case c.Renamed != "":
			then = fmt.Sprintf("it is published as %q", peering.Text(c.Renamed, browse.MaxClusterName))
		}
		out = append(out, fmt.Sprintf("another machine at %s announces %s %q on %s: %s. Unless that is a node of this cluster, or another cluster with the same name, another program pretends to be it: find that machine",
			c.From, what, peering.Text(c.Name, browse.MaxClusterName), c.Where, then))
	}
	return out
}

// foundOnLAN returns the found clusters to report: each once for each
// interface. Interfaces share the room; expected clusters come first, and known ones
// stay.
func foundOnLAN(list []discovery.Found, interfaces []string, before []v1alpha1.DiscoveredCluster, expected []string) []v1alpha1.DiscoveredCluster {
	type place struct{ where, id string }
	at, known := map[place][]announcement{}, map[place][]string{}
	for _, f := range before {
		known[place{f.Interface, f.ClusterID}] = f.Endpoints
	}
	for _, f := range list {
		id, err := peering.ParseClusterID(string(f.ID))
		all := discovery.DialableEndpoints(f.Endpoints)
		if err != nil || len(all) == 0 || !slices.Contains(interfaces, f.Where) {
			continue
		}
		key := place{f.Where, string(id)}
		at[key] = append(at[key], announcement{v1alpha1.DiscoveredCluster{
			Interface: f.Where, ClusterID: string(id), Name: peering.Text(f.Name, browse.MaxClusterName),
			Endpoints: all[:min(len(all), peering.MaxEndpoints)], Automatic: f.Automatic,
		}, f.From})
	}
	first := map[string]bool{}
	for _, id := range expected {
		first[id] = true
	}
	rank := func(p place) int {
		switch {
		case first[p.id]:
			return 0
		case known[p] != nil:
			return 1
		}
		return 2
	}
	all := slices.SortedFunc(maps.Keys(at), func(a, b place) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a.id, b.id), cmp.Compare(a.where, b.where))
	})
	share, has := browse.MaxFound/max(1, len(interfaces)), map[string]int{}
	var out []v1alpha1.DiscoveredCluster
	for _, key := range all {
		if len(out) < browse.MaxFound && (first[key.id] || has[key.where] < share) {
			has[key.where]++
			out = append(out, mergeAnnouncements(at[key], known[key]))
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.DiscoveredCluster) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.ClusterID, b.ClusterID))
	})
	return out
}

// announcement is what a LAN announces of a cluster under one name.
type announcement struct {
	v1alpha1.DiscoveredCluster
	// from are the addresses that announce it.
	from []netip.Addr
}

// mergeAnnouncements merges the announcements of one cluster under several names: any machine can
// announce its ID. Senders share the room in turn, so that one with many announcements does not drive
// another out. Endpoints that were known and are still announced come first, then those that
// a sender announces of its own address.
func mergeAnnouncements(all []announcement, known []string) v1alpha1.DiscoveredCluster {
	rank := func(later bool) int {
		if later {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b announcement) int {
		return cmp.Or(
			rank(!slices.Contains(known, a.Endpoints[0]))-rank(!slices.Contains(known, b.Endpoints[0])),
			rank(!a.namesItself(a.Endpoints[0]))-rank(!b.namesItself(b.Endpoints[0])),
			rank(a.Name == "")-rank(b.Name == ""), cmp.Compare(a.Name, b.Name), slices.Compare(a.Endpoints, b.Endpoints),
		)
	})
	out := all[0].DiscoveredCluster
	var claims []discovery.Claim[string]
	for i := range peering.MaxEndpoints {
		for _, s := range all {
			if i < len(s.Endpoints) {
				claims = append(claims, discovery.Claim[string]{Of: s.Endpoints[i], From: s.from})
			}
		}
	}
	for _, s := range all {
		out.Name = cmp.Or(out.Name, s.Name)
		out.Automatic = out.Automatic || s.Automatic
	}
	out.Endpoints = discovery.InTurn(claims, peering.MaxEndpoints)
	return out
}

func (s announcement) namesItself(endpoint string) bool {
	addr, err := netip.ParseAddrPort(endpoint)
	return err == nil && slices.Contains(s.from, addr.Addr().Unmap())
}
