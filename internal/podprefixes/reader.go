package podprefixes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
)

// ovnAnnotation is the annotation of Nodes by which OVN-Kubernetes gives a node prefixes.
const ovnAnnotation = "k8s.ovn.org/node-subnets"

// Reader reads what decides about the prefixes of a cluster's pods. It is not safe for concurrent use.
type Reader struct {
	// Cached has the Nodes and Pods.
	Cached client.Reader
	// Direct reads the objects of network plugins and the ConfigMaps of kube-system. Required.
	Direct client.Client
	// Reserved returns the prefixes of Services.
	Reserved func(context.Context) ([]netip.Prefix, error)
	Now      func() time.Time
	Log      *slog.Logger

	answers map[string]*answer
	used    []Source
	// last is what was logged last.
	last string
}

// answer is what was last read of a part of a source.
type answer struct {
	decoded
	known bool
	// failing is since when it cannot be read; the zero time means that it can.
	failing time.Time
	// said is the problems that were logged last.
	said string
}

// errPending says that the API server has not answered yet what a source has.
var errPending = errors.New("the API server has not answered yet where this cluster's pods have their addresses")

// Learn reads the sources and decides. It fails if the caches do, or the API server does not answer at first:
// prefixes that shrink for a moment would break connections.
func (r *Reader) Learn(ctx context.Context) (Learnt, error) {
	var in Input
	var err error
	if in.Reserved, err = r.Reserved(ctx); err != nil {
		return Learnt{}, err
	}
	var nodes corev1.NodeList
	if err := r.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return Learnt{}, fmt.Errorf("list nodes: %w", err)
	}
	var pods corev1.PodList
	if err := r.Cached.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return Learnt{}, fmt.Errorf("list pods: %w", err)
	}
	in.Nodes, in.Pods = nodesOf(nodes.Items), podsOf(pods.Items)
	if in.Found, err = r.found(ctx, nodes.Items); err != nil {
		return Learnt{}, err
	}
	in.Used, in.Advice = r.used, advice(nodes.Items, r.has(schema.GroupKind{Group: "crd.k8s.amazonaws.com", Kind: "ENIConfig"}))
	out := Decide(in)
	r.used = out.Sources
	if now := fmt.Sprint(out); now != r.last {
		r.Log.Info("where the pods of this cluster have their addresses", "from", out.Sources, "prefixes", out.Prefixes, "leftOut", out.LeftOut)
		r.last = now
	}
	return out, nil
}

// found asks all sources.
func (r *Reader) found(ctx context.Context, nodes []corev1.Node) ([]Found, error) {
	var pending error
	read := func(what string, ask func(*decoded) error) decoded {
		d, err := r.read(what, ask)
		pending = errors.Join(pending, err)
		return d
	}
	objects := func(kind schema.GroupKind, decode func(map[string]any, *decoded)) decoded {
		return read(kind.String(), func(d *decoded) error { return r.list(ctx, kind, decode, d) })
	}
	config := func(name string, decode func(map[string]string, *decoded)) decoded {
		return read("ConfigMap kube-system/"+name, func(d *decoded) error {
			var m corev1.ConfigMap
			err := r.Direct.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: name}, &m)
			if err == nil {
				decode(m.Data, d)
			}
			return err
		})
	}
	stored := objects(schema.GroupKind{Group: "crd.projectcalico.org", Kind: "IPPool"}, ipPool)
	served := objects(schema.GroupKind{Group: "projectcalico.org", Kind: "IPPool"}, ipPool)
	cilium := config(ciliumName, ciliumConfig)
	if !cilium.elsewhere {
		pools := objects(schema.GroupKind{Group: "cilium.io", Kind: "CiliumPodIPPool"}, podIPPool)
		on := objects(schema.GroupKind{Group: "cilium.io", Kind: "CiliumNode"}, ciliumNode)
		cilium.prefixes = slices.Concat(cilium.prefixes, pools.prefixes, on.prefixes)
	}
	ovn := read("annotation "+ovnAnnotation, func(d *decoded) error {
		for i := range nodes {
			ovnSubnets(nodes[i].Annotations[ovnAnnotation], d)
		}
		return nil
	})
	return []Found{
		{Calico, slices.Concat(stored.prefixes, served.prefixes)},
		{Cilium, cilium.prefixes},
		{OVN, ovn.prefixes},
		{CalicoDisabled, slices.Concat(stored.disabled, served.disabled)},
		{Kubeadm, config("kubeadm-config", kubeadmConfig).prefixes},
	}, pending
}

// has reports whether the API server has a kind.
func (r *Reader) has(kind schema.GroupKind) bool {
	_, err := r.Direct.RESTMapper().RESTMapping(kind)
	return err == nil
}

// read asks for a part of a source. What cannot be read now is what was last read. What was never read is
// empty: at once if it does not exist or may not be read, otherwise after a while, and errPending until then.
func (r *Reader) read(what string, ask func(*decoded) error) (decoded, error) {
	if r.answers == nil {
		r.answers = map[string]*answer{}
	}
	a := r.answers[what]
	if a == nil {
		a = &answer{}
		r.answers[what] = a
	}
	var d decoded
	err := ask(&d)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		d, err = decoded{}, nil
	}
	if err == nil {
		a.decoded, a.known, a.failing = d, true, time.Time{}
		if said := strings.Join(d.problems, "; "); said != a.said {
			if a.said = said; said != "" {
				r.Log.Warn("prefixes of pods are malformed and left out", "in", what, "problems", said)
			}
		}
		return d, nil
	}
	if a.failing.IsZero() {
		a.failing = r.Now()
		r.Log.Warn("cannot read where this cluster's pods have their addresses; what was last read counts", "what", what, "known", a.known, "err", err)
	}
	if !a.known && !apierrors.IsForbidden(err) && r.Now().Sub(a.failing) < patience {
		return decoded{}, errPending
	}
	return a.decoded, nil
}

// list decodes all objects of a kind, in the version that the API server prefers.
func (r *Reader) list(ctx context.Context, kind schema.GroupKind, decode func(map[string]any, *decoded), d *decoded) error {
	mapping, err := r.Direct.RESTMapper().RESTMapping(kind)
	if err != nil {
		return err //nolint:wrapcheck // the caller says of what
	}
	list := &unstructured.UnstructuredList{}
	for count := 0; ; {
		next := list.GetContinue()
		list = &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(mapping.GroupVersionKind.GroupVersion().WithKind(kind.Kind + "List"))
		if err := r.Direct.List(ctx, list, client.Limit(pageSize), client.Continue(next)); err != nil {
			return err //nolint:wrapcheck // the caller says of what
		}
		for i := range list.Items {
			if count++; count > maxObjects {
				d.problem("there are more than %d objects", maxObjects)
				return nil
			}
			decode(list.Items[i].Object, d)
		}
		if list.GetContinue() == "" {
			return nil
		}
	}
}

// nodesOf returns the nodes that are not virtual.
func nodesOf(nodes []corev1.Node) (out []Node) {
	for i := range nodes {
		n := &nodes[i]
		if n.Labels[v1alpha1.LabelVirtualNode] != "" {
			continue
		}
		var texts []string
		for _, a := range n.Status.Addresses {
			texts = append(texts, a.Address)
		}
		out = append(out, Node{Name: n.Name, PodCIDRs: kube.Prefixes(n.Spec.PodCIDRs), Addresses: kube.Addrs(texts)})
	}
	return out
}

// podsOf returns the pods on the pod network. One that ended may name an address that is another's by now.
func podsOf(pods []corev1.Pod) (out []Pod) {
	for i := range pods {
		p := &pods[i]
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		var texts []string
		for _, ip := range p.Status.PodIPs {
			texts = append(texts, ip.IP)
		}
		if addrs := kube.Addrs(texts); len(addrs) > 0 {
			out = append(out, Pod{Node: p.Spec.NodeName, Addrs: addrs})
		}
	}
	return out
}
