package reflection

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Preferred returns the endpoints that a Service uses here, given the addresses of pods that run
// here. It decides by leaving endpoints out of the EndpointSlices, so that it works on nodes
// without a zone, too.
func Preferred(in peering.ServiceObject, ips map[string]netip.Addr) []peering.ServiceEndpoint {
	if !in.OwnFirst || in.Headless {
		return in.Endpoints
	}
	here := func(e peering.ServiceEndpoint) bool { return e.PodUID != "" && ips[e.PodUID].IsValid() }
	if !slices.ContainsFunc(in.Endpoints, func(e peering.ServiceEndpoint) bool { return e.Ready && here(e) }) {
		return in.Endpoints
	}
	var out []peering.ServiceEndpoint
	for _, e := range in.Endpoints {
		if here(e) {
			out = append(out, e)
		}
	}
	return out
}

// Slices writes the EndpointSlices of reflected Services.
type Slices struct {
	Client client.Client
}

// Write replaces the EndpointSlices have of a Service by want.
func (s Slices) Write(ctx context.Context, want, have []*discoveryv1.EndpointSlice) error {
	existing := make(map[string]*discoveryv1.EndpointSlice, len(have))
	for _, h := range have {
		existing[h.Name] = h
	}
	for _, w := range want {
		h, ok := existing[w.Name]
		delete(existing, w.Name)
		if err := s.write(ctx, h, w, ok); err != nil {
			return err
		}
	}
	for _, h := range existing {
		if err := s.Client.Delete(ctx, h, client.Preconditions{UID: new(h.UID)}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete endpoint slice %s: %w", h.Name, err)
		}
	}
	return nil
}

func (s Slices) write(ctx context.Context, have, want *discoveryv1.EndpointSlice, exists bool) error {
	if exists && have.AddressType == want.AddressType && sameOwner(have, want) {
		if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
			equality.Semantic.DeepEqual(have.Labels, want.Labels) {
			return nil
		}
		have = have.DeepCopy()
		have.Endpoints, have.Ports, have.Labels = want.Endpoints, want.Ports, want.Labels
		if err := s.Client.Update(ctx, have, client.FieldOwner(api.Manager)); err != nil {
			return fmt.Errorf("update endpoint slice %s: %w", want.Name, err)
		}
		return nil
	}
	if exists {
		if err := s.Client.Delete(ctx, have, client.Preconditions{UID: new(have.UID)}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("replace endpoint slice %s: %w", want.Name, err)
		}
	}
	err := s.Client.Create(ctx, want.DeepCopy(), client.FieldOwner(api.Manager))
	if apierrors.IsAlreadyExists(err) {
		return s.writeUnseen(ctx, want)
	}
	if err != nil {
		return fmt.Errorf("create endpoint slice %s: %w", want.Name, err)
	}
	return nil
}

// writeUnseen updates an EndpointSlice that exists but is not in the cache yet. It leaves one of another
// owner alone.
func (s Slices) writeUnseen(ctx context.Context, want *discoveryv1.EndpointSlice) error {
	have := &discoveryv1.EndpointSlice{}
	if err := s.Client.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return fmt.Errorf("read endpoint slice %s: %w", want.Name, err)
	}
	if have.Labels[api.LabelManaged] != api.Manager || !sameOwner(have, want) || have.AddressType != want.AddressType {
		return nil
	}
	return s.write(ctx, have, want, true)
}

func sameOwner(a, b metav1.Object) bool {
	x, y := metav1.GetControllerOf(a), metav1.GetControllerOf(b)
	return x != nil && y != nil && x.UID == y.UID
}

// Delete deletes the EndpointSlices of a Service.
func (s Slices) Delete(ctx context.Context, svc *corev1.Service) error {
	var list discoveryv1.EndpointSliceList
	if err := s.Client.List(ctx, &list, client.InNamespace(svc.Namespace), client.MatchingLabels{
		discoveryv1.LabelManagedBy: api.Manager, discoveryv1.LabelServiceName: svc.Name,
	}); err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	for i := range list.Items {
		if err := s.Client.Delete(ctx, &list.Items[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete endpoint slice: %w", err)
		}
	}
	return nil
}
