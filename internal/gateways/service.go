package gateways

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
)

// Services configures the Services by which other clusters dial gateways, one for each gateway: each
// has a key of its own, so packets for one must not arrive at another. The zero value makes none.
type Services struct {
	// Namespace is where the Services are.
	Namespace string
	// Type is LoadBalancer or NodePort; empty makes none, and removes those that were made.
	Type corev1.ServiceType
	// Families is which families they have. Class is the class of load balancers, Annotations are further settings for
	// the cloud.
	Families    corev1.IPFamilyPolicy
	Class       string
	Annotations map[string]string
}

const (
	// servicePrefix begins the names of gateways' Services. The chart's
	// guard lets the agent make only these.
	servicePrefix    = "entente-gateway-"
	componentLabel   = "app.kubernetes.io/component"
	componentGateway = "gateway"
	// annotationApplied is the hash of the objects that were last written.
	annotationApplied = "entente.dev/applied"
)

// gatewayService is the Service of a gateway, with its EndpointSlices.
type gatewayService struct {
	name, node string
	service    *corev1ac.ServiceApplyConfiguration
	slices     []*discoveryv1ac.EndpointSliceApplyConfiguration
}

// has reports whether an object is the Service of a gateway, by its label.
func (cfg Services) has(o client.Object) bool {
	return o.GetNamespace() == cfg.Namespace && o.GetLabels()[componentLabel] == componentGateway
}

// name returns the name of a gateway's Service. It differs by type and class, which cannot be
// changed under a cloud's controller.
func (cfg Services) name(node string) string {
	sum := sha256.Sum256([]byte(string(cfg.Type) + "/" + cfg.Class + "/" + node))
	return servicePrefix + hex.EncodeToString(sum[:8])
}

// planServices returns the Services to make for gateways, the existing ones to delete, and
// the gateways without a Service, with the reason. If there are more gateways than
// Services allowed, those that have one keep it.
func planServices(cfg Services, gateways []gateway, have []corev1.Service) (want []gatewayService, gone []*corev1.Service, without map[string]string) {
	exists, without := map[string]bool{}, map[string]string{}
	for i := range have {
		exists[have[i].Name] = true
	}
	if cfg.Type == "" {
		gateways = nil
	}
	gateways = slices.SortedFunc(slices.Values(gateways), func(a, b gateway) int {
		return cmp.Or(compareBool(exists[cfg.name(b.node)], exists[cfg.name(a.node)]), cmp.Compare(a.node, b.node))
	})
	kept := map[string]bool{}
	for i, g := range gateways {
		name := cfg.name(g.node)
		if i >= maxServices {
			without[g.node] = fmt.Sprintf("there are %d gateways, the limit is %d Services (maxServices): this one has none; label fewer nodes %s=true", len(gateways), maxServices, v1alpha1.LabelGateway)
			continue
		}
		s := serviceFor(cfg, name, g)
		kept[name] = true
		if len(s.slices) == 0 {
			without[g.node] = "it has no Service yet: its Node has no InternalIP, or its fabric has not reported its port"
			continue
		}
		want = append(want, s)
	}
	for i := range have {
		if !kept[have[i].Name] && have[i].DeletionTimestamp.IsZero() {
			gone = append(gone, &have[i])
		}
	}
	return want, gone, without
}

// serviceFor returns a gateway's Service, which leads only to the fabric on that node, with
// externalTrafficPolicy Local: so sources are kept, and a load balancer sends to that node.
func serviceFor(cfg Services, name string, g gateway) gatewayService {
	out := gatewayService{name: name, node: g.node}
	port, err := strconv.ParseUint(g.port, 10, 16)
	if err != nil || port == 0 {
		return out
	}
	labels := map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, componentLabel: componentGateway}
	owner := metav1ac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("FabricNode").WithName(g.node).WithUID(g.uid).WithController(true)
	out.service = corev1ac.Service(name, cfg.Namespace).WithLabels(labels).WithAnnotations(cfg.Annotations).WithOwnerReferences(owner).
		WithSpec(corev1ac.ServiceSpec().WithType(cfg.Type).WithIPFamilyPolicy(cmp.Or(cfg.Families, corev1.IPFamilyPolicyPreferDualStack)).WithExternalTrafficPolicy(corev1.ServiceExternalTrafficPolicyLocal).
			WithPorts(corev1ac.ServicePort().WithName("wireguard").WithProtocol(corev1.ProtocolUDP).WithPort(int32(port)).WithTargetPort(intstr.FromInt32(int32(port)))))
	if cfg.Type == corev1.ServiceTypeLoadBalancer && cfg.Class != "" {
		out.service.Spec.WithLoadBalancerClass(cfg.Class)
	}
	families := map[discoveryv1.AddressType]bool{}
	for _, a := range g.addresses {
		addr, err := netip.ParseAddr(a.Address)
		if a.Type != corev1.NodeInternalIP || err != nil {
			continue
		}
		family, suffix := discoveryv1.AddressTypeIPv4, "-ipv4"
		if addr.Is6() {
			family, suffix = discoveryv1.AddressTypeIPv6, "-ipv6"
		}
		if families[family] {
			continue // the fabric listens at all of them
		}
		families[family] = true
		out.slices = append(out.slices, discoveryv1ac.EndpointSlice(name+suffix, cfg.Namespace).
			WithLabels(labels).WithLabels(map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "entente.dev"}).
			WithOwnerReferences(owner).WithAddressType(family).
			WithPorts(discoveryv1ac.EndpointPort().WithName("wireguard").WithProtocol(corev1.ProtocolUDP).WithPort(int32(port))).
			WithEndpoints(discoveryv1ac.Endpoint().WithAddresses(addr.String()).WithNodeName(g.node)))
	}
	return out
}

// hash is that of all objects to write.
func (s gatewayService) hash() (string, error) {
	b, err := json.Marshal([]any{s.service, s.slices})
	if err != nil {
		return "", fmt.Errorf("write Service %s: %w", s.name, err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

// upToDate reports whether a Service was last written with this hash, and whether its fields that
// matter are unchanged since.
func (s gatewayService) upToDate(at *corev1.Service, hash string) bool {
	return at != nil && at.Annotations[annotationApplied] == hash && at.Spec.Type == *s.service.Spec.Type && len(at.Spec.Selector) == 0 &&
		at.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && len(at.Spec.Ports) == 1 &&
		at.Spec.Ports[0].Port == *s.service.Spec.Ports[0].Port && at.Spec.Ports[0].Protocol == corev1.ProtocolUDP
}

// servedAt returns the endpoints of a gateway by its Service, or a problem.
func servedAt(s *corev1.Service, addresses []corev1.NodeAddress) (endpoints []string, problem string) {
	if len(s.Spec.Ports) == 0 {
		return nil, fmt.Sprintf("Service %s has no port", s.Name)
	}
	if port := s.Spec.Ports[0]; s.Spec.Type == corev1.ServiceTypeNodePort {
		if port.NodePort == 0 {
			return nil, fmt.Sprintf("Service %s has no port on its node yet", s.Name)
		}
		has := slices.DeleteFunc(slices.Clone(addresses), func(a corev1.NodeAddress) bool { return !kube.HasFamily(s, a.Address) })
		if endpoints = nodeEndpoints(has, strconv.Itoa(int(port.NodePort))); len(endpoints) == 0 {
			return nil, fmt.Sprintf("Service %s: its node has no address of the Service's families", s.Name)
		}
		return endpoints, ""
	}
	port := s.Spec.Ports[0].Port
	for _, at := range s.Status.LoadBalancer.Ingress {
		if i := slices.IndexFunc(at.Ports, func(p corev1.PortStatus) bool {
			return p.Port == port && p.Protocol == corev1.ProtocolUDP && p.Error != nil
		}); i >= 0 {
			problem = fmt.Sprintf("the load balancer of Service %s does not pass UDP %d: %s", s.Name, port, *at.Ports[i].Error)
			continue
		}
		for _, host := range []string{at.IP, at.Hostname} {
			if host != "" {
				endpoints = append(endpoints, net.JoinHostPort(host, strconv.Itoa(int(port))))
			}
		}
	}
	if len(endpoints) == 0 && problem == "" {
		problem = fmt.Sprintf("Service %s has no load balancer yet: see its events with kubectl -n %s describe service %s", s.Name, s.Namespace, s.Name)
	}
	return endpoints, problem
}

// served is the result of a gateway's Service.
type served struct {
	endpoints []string
	problem   string
}

// serve reconciles the Services of gateways, and returns the result for each.
// An error with one does not stop the others, or the announcement of other endpoints.
func (r *Reconciler) serve(ctx context.Context, gateways []gateway) (map[string]served, error) {
	var list corev1.ServiceList
	if err := r.Client.List(ctx, &list, client.InNamespace(r.Services.Namespace), client.MatchingLabels{componentLabel: componentGateway, v1alpha1.LabelManaged: v1alpha1.Manager}); err != nil {
		return nil, fmt.Errorf("list Services of gateways: %w", err)
	}
	want, gone, without := planServices(r.Services, gateways, list.Items)
	out := map[string]served{}
	for node, problem := range without {
		out[node] = served{problem: problem}
	}
	at := map[string]*corev1.Service{}
	for i := range list.Items {
		at[list.Items[i].Name] = &list.Items[i]
	}
	addresses := map[string][]corev1.NodeAddress{}
	for _, g := range gateways {
		addresses[g.node] = g.addresses
	}
	var errs []error
	for _, s := range want {
		state := served{problem: "Service " + s.name + " was just made"}
		if is := at[s.name]; is != nil {
			state.endpoints, state.problem = servedAt(is, addresses[s.node])
		}
		if err := r.applyService(ctx, s, at[s.name]); err != nil {
			errs = append(errs, err)
			state.problem = err.Error()
		}
		out[s.node] = state
	}
	for _, s := range gone {
		if err := r.Client.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete Service %s: %w", s.Name, err))
		}
	}
	return out, errors.Join(errs...)
}

// applyService writes a Service and its EndpointSlices if they differ from the desired ones.
func (r *Reconciler) applyService(ctx context.Context, s gatewayService, at *corev1.Service) error {
	hash, err := s.hash()
	if err != nil {
		return err
	}
	missing := false
	for _, slice := range s.slices {
		var is discoveryv1.EndpointSlice
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: r.Services.Namespace, Name: *slice.Name}, &is)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read EndpointSlice %s: %w", *slice.Name, err)
		}
		missing = missing || err != nil || len(is.Endpoints) != 1 || !slices.Equal(is.Endpoints[0].Addresses, slice.Endpoints[0].Addresses)
	}
	if !missing && s.upToDate(at, hash) {
		return nil
	}
	// The Service last: its hash says that all objects were written.
	owner := []client.ApplyOption{client.FieldOwner(v1alpha1.Manager), client.ForceOwnership}
	for _, slice := range s.slices {
		if err := r.Client.Apply(ctx, slice, owner...); err != nil {
			return fmt.Errorf("write EndpointSlice %s: %w", *slice.Name, err)
		}
	}
	if err := r.Client.Apply(ctx, s.service.WithAnnotations(map[string]string{annotationApplied: hash}), owner...); err != nil {
		return fmt.Errorf("write Service %s: %w", s.name, err)
	}
	return nil
}
