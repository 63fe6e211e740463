package doctor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// The reasons of findings about Services: docs/troubleshooting.md explains each.
const (
	reasonServiceNotOpen     = "ServiceNotOpen"
	reasonServicesNotChecked = "ServicesNotChecked"
)

// Abroad is which Services of other namespaces the pods at peers are configured with, by their commands, arguments
// and variables. What they read from ConfigMaps, Secrets and files is not known.
type Abroad struct {
	Names []Named
	// Offloadings says what is open to whom.
	Offloadings []v1alpha1.NamespaceOffloading
	// Read says that this was read, and Unread why not.
	Read   bool
	Unread error
}

// Named is an existing Service that a pod of another namespace names.
type Named struct{ From, Namespace, Service string }

// readAbroad reads the pods on virtual nodes, and the Services.
func readAbroad(ctx context.Context, c kubernetes.Interface) (a Abroad) {
	requests, err := listOf[v1alpha1.PeeringRequest](ctx, c.CoreV1().RESTClient(), "peeringrequests")
	if err != nil {
		return Abroad{Unread: fmt.Errorf("list peering requests: %w", err)}
	}
	if a.Offloadings, err = listOf[v1alpha1.NamespaceOffloading](ctx, c.CoreV1().RESTClient(), "namespaceoffloadings"); err != nil {
		return Abroad{Unread: fmt.Errorf("list namespace offloadings: %w", err)}
	}
	nodes := map[string]bool{}
	for i := range requests {
		if node := requests[i].Status.Node; node != "" {
			nodes[node] = true
		}
	}
	a.Names, a.Unread = namedAbroad(ctx, c, slices.Sorted(maps.Keys(nodes)))
	a.Read = a.Unread == nil
	return a
}

// namedAbroad returns the existing Services of other namespaces that pods on nodes name.
func namedAbroad(ctx context.Context, c kubernetes.Interface, nodes []string) ([]Named, error) {
	found := map[Named]bool{}
	for _, node := range nodes {
		for next := ""; ; {
			pods, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), Limit: pageSize, Continue: next})
			if err != nil {
				return nil, fmt.Errorf("list the pods on %s: %w", node, err)
			}
			for i := range pods.Items {
				for _, n := range namedBy(&pods.Items[i]) {
					found[n] = false
				}
			}
			if next = pods.Continue; next == "" {
				break
			}
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	exists := map[Named]bool{}
	for next := ""; ; {
		services, err := c.CoreV1().Services("").List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if err != nil {
			return nil, fmt.Errorf("list services: %w", err)
		}
		for i := range services.Items {
			if s := &services.Items[i]; s.Spec.Type != corev1.ServiceTypeExternalName { // these lead out of the cluster
				exists[Named{Namespace: s.Namespace, Service: s.Name}] = true
			}
		}
		if next = services.Continue; next == "" {
			break
		}
	}
	maps.DeleteFunc(found, func(n Named, _ bool) bool { return !exists[Named{Namespace: n.Namespace, Service: n.Service}] })
	return slices.SortedFunc(maps.Keys(found), func(a, b Named) int {
		return cmp.Or(strings.Compare(a.From, b.From), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Service, b.Service))
	}), nil
}

// namedBy returns what may be Services of other namespaces among the words of a pod's configuration.
func namedBy(p *corev1.Pod) (all []Named) {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		texts := slices.Concat(c.Command, c.Args)
		for _, v := range c.Env {
			texts = append(texts, v.Value)
		}
		for _, text := range texts {
			for _, word := range strings.FieldsFunc(text, func(r rune) bool {
				return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-./_", r)
			}) {
				if service, namespace := serviceIn(word); namespace != "" && namespace != p.Namespace {
					all = append(all, Named{p.Namespace, namespace, service})
				}
			}
		}
	}
	return all
}

// serviceIn returns what a word names if it is NAME.NAMESPACE or ends in .svc or more, with any host of it in front;
// a path may follow.
func serviceIn(word string) (service, namespace string) {
	host, _, _ := strings.Cut(strings.TrimPrefix(word, "//"), "/")
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	n := len(labels)
	if i := slices.Index(labels, "svc"); i >= 0 {
		n = i
	} else if n != 2 {
		return "", ""
	}
	if n < 2 {
		return "", ""
	}
	return labels[n-2], labels[n-1]
}

// serviceFindings returns which Services pods abroad name that are not open to them, by the two namespaces.
func serviceFindings(is Abroad, system string, asked bool) (found []Finding) {
	if is.Unread != nil && asked {
		remedy := "run this with rights to list pods and Services in all namespaces"
		if !apierrors.IsForbidden(is.Unread) {
			remedy = "run this again"
		}
		found = append(found, Finding{
			Area: AreaServices, Reason: reasonServicesNotChecked, Severity: Info, Remedy: remedy,
			Message: "it is not known which Services pods abroad name: " + strings.TrimSuffix(is.Unread.Error(), "."),
		})
	}
	offloaded := map[string]*v1alpha1.NamespaceOffloading{}
	for i := range is.Offloadings {
		if o := &is.Offloadings[i]; o.DeletionTimestamp.IsZero() {
			offloaded[o.Namespace] = o
		}
	}
	for rest := is.Names; len(rest) > 0; {
		n := rest[0]
		var names []string
		for len(rest) > 0 && rest[0].From == n.From && rest[0].Namespace == n.Namespace {
			names, rest = append(names, rest[0].Service), rest[1:]
		}
		// The API server is reached otherwise, and these namespaces cannot be offloaded.
		if n.Namespace == metav1.NamespaceDefault {
			names = slices.DeleteFunc(names, func(name string) bool { return name == "kubernetes" })
		}
		if o := offloaded[n.Namespace]; len(names) > 0 && n.Namespace != system && !strings.HasPrefix(n.Namespace, "kube-") && !openTo(o, n.From) {
			found = append(found, notOpen(n, names, o))
		}
	}
	return found
}

// openTo reports whether the Services of a namespace are open to pods of another one; o is nil if it is not offloaded.
func openTo(o *v1alpha1.NamespaceOffloading, namespace string) bool {
	return o != nil && (slices.Contains(o.Spec.OpenTo, namespace) || slices.Contains(o.Spec.OpenTo, v1alpha1.AllNamespaces))
}

// notOpen is the finding that pods of a namespace name Services of another one that is not open to it.
func notOpen(n Named, names []string, o *v1alpha1.NamespaceOffloading) Finding {
	if more := len(names) - maxNamedServices; more > 0 {
		names = append(names[:maxNamedServices:maxNamedServices], fmt.Sprintf("%d more", more))
	}
	f := Finding{Area: AreaServices, Reason: reasonServiceNotOpen, Severity: Info}
	f.Message = fmt.Sprintf("pods of namespace %s that run at peers name Services of namespace %s, which is not offloaded, so the names do not resolve there: %s", n.From, n.Namespace, strings.Join(names, ", "))
	command := fmt.Sprintf("entente offload namespace %s --strategy Local --open-to %s", n.Namespace, n.From)
	if o != nil {
		f.Message = fmt.Sprintf("pods of namespace %s that run at peers name Services of namespace %s, which is not open to them, so connections to its pods here time out: %s", n.From, n.Namespace, strings.Join(names, ", "))
		command = fmt.Sprintf("entente offload namespace %s --open-to %s", n.Namespace, strings.Join(append(slices.Clone(o.Spec.OpenTo), n.From), ","))
	}
	f.Remedy = fmt.Sprintf("if they use them, and whoever is responsible for %s agrees: %s", n.Namespace, command)
	return f
}
