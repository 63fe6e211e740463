package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// Snapshot is everything in a cluster that an install and a peering could have
// made or marked: all objects of all kinds, and the network of the node. Two of
// them, taken before and after, show what is left.
type Snapshot struct {
	// Objects maps "kind.group namespace/name" to what in its metadata speaks of
	// Entente: labels, annotations, finalizers, owners.
	Objects map[string][]string
	// Network is lines such as "interface entente0", "route …", "rule …",
	// "nft table …".
	Network []string
}

// Snapshot reads the state of a cluster.
func (s *Side) Snapshot(ctx context.Context) (Snapshot, error) {
	objects, err := s.snapshotObjects(ctx)
	if err != nil {
		return Snapshot{}, fmt.Errorf("list the objects of %s: %w", s.Name, err)
	}
	network, err := s.snapshotNetwork(ctx)
	if err != nil {
		return Snapshot{}, fmt.Errorf("read the network of %s: %w", s.Name, err)
	}
	return Snapshot{Objects: objects, Network: network}, nil
}

// Left returns what is in s and was not in before, or speaks of Entente now and
// did not before; sorted. Objects in the namespaces given, and those themselves,
// are the caller's own.
func (s Snapshot) Left(before Snapshot, own ...string) []string {
	var left []string
	for name, marks := range s.Objects {
		_, object, _ := strings.Cut(name, " ")
		namespace, _, _ := strings.Cut(object, "/")
		if slices.Contains(own, namespace) || slices.ContainsFunc(own, func(o string) bool { return name == "Namespace "+o }) {
			continue
		}
		was, there := before.Objects[name]
		if !there {
			left = append(left, name)
			continue
		}
		for _, mark := range marks {
			if !slices.Contains(was, mark) {
				left = append(left, name+" has "+mark)
			}
		}
	}
	for _, line := range s.Network {
		if !slices.Contains(before.Network, line) {
			left = append(left, line)
		}
	}
	slices.Sort(left)
	return left
}

// addressesOfServices manages IPAddresses, whose names say what a Service happened to be given.
const addressesOfServices = "ipallocator.k8s.io"

// snapshotObjects lists all objects of all kinds but events and the addresses of Services.
func (s *Side) snapshotObjects(ctx context.Context) (map[string][]string, error) {
	client, err := metadata.NewForConfig(s.REST)
	if err != nil {
		return nil, err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(s.REST)
	if err != nil {
		return nil, err
	}
	lists, err := disco.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	out := map[string][]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "events" || r.Kind == "ComponentStatus" {
				continue
			}
			found, err := client.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue // the kind went away meanwhile
			}
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", r.Name, err)
			}
			kind := strings.TrimSuffix(r.Kind+"."+gv.Group, ".")
			for i := range found.Items {
				o := &found.Items[i]
				if o.Labels[networkingv1.LabelManagedBy] == addressesOfServices {
					continue // it is a Service's, and lives as long
				}
				out[kind+" "+strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")] = marks(&o.ObjectMeta)
			}
		}
	}
	return out, nil
}

// marks returns what in an object's metadata refers to Entente. Field managers do not count.
func marks(o *metav1.ObjectMeta) []string {
	var out []string
	add := func(what, text string) {
		if strings.Contains(text, "entente") && !strings.Contains(text, "lab.entente.dev") {
			out = append(out, what+" "+text)
		}
	}
	for k, v := range o.Labels {
		add("label", k+"="+v)
	}
	for k, v := range o.Annotations {
		add("annotation", k+"="+v)
	}
	for _, f := range o.Finalizers {
		add("finalizer", f)
	}
	for _, r := range o.OwnerReferences {
		add("owner", r.APIVersion+" "+r.Kind+" "+r.Name)
	}
	slices.Sort(out)
	return out
}

// snapshotNetwork lists what the fabric could have left in the network namespace
// of the node. Pods' own interfaces come and go and are left out.
func (s *Side) snapshotNetwork(ctx context.Context) ([]string, error) {
	var lines []string
	own := 0
	links, err := s.ipJSON(ctx, "link", "show")
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if name := fmt.Sprint(l["ifname"]); !strings.HasPrefix(name, "veth") {
			lines = append(lines, "interface "+name)
		}
	}
	for _, family := range []string{"-4", "-6"} {
		routes, err := s.ipJSON(ctx, family, "route", "show", "table", "all")
		if err != nil {
			return nil, err
		}
		for _, r := range routes {
			// Routes of IPv6's own come and go with the addresses of interfaces.
			dst := fmt.Sprint(r["dst"])
			if strings.HasPrefix(dst, "fe80:") || strings.HasPrefix(dst, "ff00:") {
				continue
			}
			if r["dev"] == "entente0" && r["table"] == "local" {
				// It follows from the cluster's ID, which is another one after an install whose namespace was deleted.
				own++
				dst = fmt.Sprintf("number %d of the node's own addresses", own)
			}
			if dev := fmt.Sprint(r["dev"]); !strings.HasPrefix(dev, "veth") {
				lines = append(lines, fmt.Sprintf("route %s dev %s protocol %v table %v", dst, dev, r["protocol"], r["table"]))
			}
		}
		rules, err := s.ipJSON(ctx, family, "rule", "show")
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			b, err := json.Marshal(r)
			if err != nil {
				return nil, err
			}
			lines = append(lines, "rule "+family+" "+string(b))
		}
	}
	tables, err := s.OnNode(ctx, "nft", "list", "tables")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(tables) {
		lines = append(lines, "nft "+strings.TrimSpace(line))
	}
	slices.Sort(lines)
	return slices.Compact(lines), nil
}

// ipJSON runs ip in the node's network.
func (s *Side) ipJSON(ctx context.Context, args ...string) ([]map[string]any, error) {
	out, err := s.OnNode(ctx, append([]string{"ip", "-j"}, args...)...)
	if err != nil {
		return nil, err
	}
	if out = strings.TrimSpace(out); out == "" {
		return nil, nil
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read what ip %v printed: %w", args, err)
	}
	return slices.DeleteFunc(list, func(m map[string]any) bool { return len(m) == 0 }), nil
}

// Snapshots reads the state of both clusters.
func (w *World) Snapshots(ctx context.Context) (map[*Side]Snapshot, error) {
	w.Wait("list all objects")
	out := map[*Side]Snapshot{}
	for _, s := range w.Sides() {
		snapshot, err := s.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		out[s] = snapshot
	}
	return out, nil
}

// NothingLeft waits until nothing is left of what came after the snapshots: what
// Kubernetes takes away by itself, like endpoints and IP addresses of Services,
// takes a moment.
func (w *World) NothingLeft(ctx context.Context, before map[*Side]Snapshot, own ...string) error {
	return w.Until(ctx, Scheduled, "nothing to be left", func(ctx context.Context) (string, error) {
		var left []string
		for _, s := range w.Sides() {
			now, err := s.Snapshot(ctx)
			if err != nil {
				return "", err
			}
			for _, what := range now.Left(before[s], own...) {
				left = append(left, s.Name+": "+what)
			}
		}
		return strings.Join(left, "\n"), nil
	})
}

// extract returns the objects of a list.
func extract(list runtime.Object) ([]ctrlclient.Object, error) {
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	var out []ctrlclient.Object
	for _, item := range items {
		o, ok := item.(ctrlclient.Object)
		if !ok {
			return nil, errors.New("a list whose items are not objects")
		}
		out = append(out, o)
	}
	return out, nil
}

// Count says how many objects of each kind a snapshot has, for people.
func (s Snapshot) Count() string {
	kinds := map[string]int{}
	for name := range s.Objects {
		kind, _, _ := strings.Cut(name, " ")
		kinds[kind]++
	}
	return fmt.Sprintf("%d objects of %d kinds, %d interfaces, routes, rules and nft tables", len(s.Objects), len(slices.Collect(maps.Keys(kinds))), len(s.Network))
}
