package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// anyPeer stands for whichever peer lends, in peers/-.
const anyPeer = "-"

// annotationRequest is the ID of the call that made a PeeringRequest, and a hash
// of what it asked for: a call that comes twice makes one.
const annotationRequest = "entente.dev/request-id"

// CreatePeering implements AdminService: it writes a PeeringRequest.
func (s *service) CreatePeering(ctx context.Context, req *ententev1.CreatePeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	request, err := s.newRequest(ctx, req)
	if err != nil {
		return nil, err
	}
	if req.GetValidateOnly() {
		return s.validatePeering(ctx, request)
	}
	if id := req.GetRequestId(); id != "" {
		mark := id + ":" + hashOf(request)
		request.Annotations = map[string]string{annotationRequest: mark}
		made, err := s.madeBy(ctx, id, mark)
		if err != nil || made != "" {
			return &ententev1.CreatePeeringResponse{PeeringRequest: made}, err
		}
	}
	request.Name = cmp.Or(request.Name, nameFor(req.GetRequestId()))
	err = s.cfg.Client.Create(ctx, request, ctrlclient.FieldOwner(adminFieldManager))
	if apierrors.IsAlreadyExists(err) {
		return s.peeringExists(ctx, request)
	}
	if err != nil {
		return nil, fmt.Errorf("create peering request %s: %w", request.Name, err)
	}
	return &ententev1.CreatePeeringResponse{PeeringRequest: request.Name}, nil
}

// newRequest is what a request asks for as a PeeringRequest. It has no name where
// the request leaves that to this cluster.
func (s *service) newRequest(ctx context.Context, req *ententev1.CreatePeeringRequest) (*v1alpha1.PeeringRequest, error) {
	request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: req.GetPeeringRequest()}}
	spec := &request.Spec
	if peerName(req.GetPeer()) == anyPeer {
		spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: req.GetPeerSelector()}
		if _, err := metav1.LabelSelectorAsSelector(spec.ClusterSelector); err != nil {
			return nil, middleware.BadField("peer_selector", "%s", peering.Text(err.Error(), peering.MaxMessageLen))
		}
	} else {
		if len(req.GetPeerSelector()) > 0 {
			return nil, middleware.BadField("peer_selector", "chooses among peers: ask peers/- for any that it selects")
		}
		fc, err := s.foreignCluster(ctx, req.GetPeer())
		if err != nil {
			return nil, err
		}
		spec.ForeignCluster = fc.Name
		request.Name = cmp.Or(request.Name, nameInPool(fc.Name, req.GetPool()))
	}
	if err := askedTerms(spec, req); err != nil {
		return nil, err
	}
	spec.Renewal = askedRenewal(req.GetNoRenewal())
	return request, nil
}

// askedTerms writes what is asked for into a PeeringRequest.
func askedTerms(spec *v1alpha1.PeeringRequestSpec, req *ententev1.CreatePeeringRequest) error {
	var err error
	if spec.Resources, err = askedResources("resources", req.GetResources(), tunnelAlone(req)); err != nil {
		return err
	}
	if spec.Duration, err = askedDuration("duration", req.GetDuration()); err != nil {
		return err
	}
	if spec.PriceCeiling, err = askedMoney("price_ceiling", req.GetPriceCeiling()); err != nil {
		return err
	}
	if err := peering.CheckNodeSelector(req.GetNodeSelector()); err != nil {
		return middleware.BadField("node_selector", "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	spec.Pool, spec.NodeSelector = req.GetPool(), req.GetNodeSelector()
	if spec.StorageClasses, err = askedClasses("storage_classes", req.GetStorageClasses()); err != nil {
		return err
	}
	if spec.RuntimeClasses, err = askedClasses("runtime_classes", req.GetRuntimeClasses()); err != nil {
		return err
	}
	spec.Network = askedNetwork(req.GetNoNetwork())
	return nil
}

// askedResources reads amounts by the core's rules, so that what cannot be agreed
// on is refused here and not by the provider. zero says that a resource may be given
// back.
func askedResources(field string, m *ententev1.ResourceList, zero bool) (corev1.ResourceList, error) {
	resources, err := peering.ParseResources(m.GetAmounts())
	if err != nil {
		return nil, middleware.BadField(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	var out corev1.ResourceList
	for _, name := range resources.Names() {
		q := resources[name]
		if q.IsZero() && !zero {
			return nil, middleware.BadField(field, "%s is nothing: leave it out", name)
		}
		if !peering.Fractional(name) && !q.IsWhole() {
			return nil, middleware.BadField(field, "%s is not a whole number", name)
		}
		amount, err := resource.ParseQuantity(q.String())
		if err != nil {
			return nil, middleware.BadField(field, "%s: %s", name, err)
		}
		if out == nil {
			out = corev1.ResourceList{}
		}
		out[corev1.ResourceName(name)] = amount
	}
	return out, nil
}

func askedDuration(field string, m *durationpb.Duration) (*metav1.Duration, error) {
	if m == nil {
		return nil, nil //nolint:nilnil // no duration leaves it to the provider
	}
	d := m.AsDuration()
	if err := m.CheckValid(); err != nil || d <= 0 || d > peering.MaxContractLife {
		return nil, middleware.BadField(field, "must be positive and at most %s", peering.MaxContractLife)
	}
	return &metav1.Duration{Duration: d}, nil
}

func askedMoney(field string, m *ententev1.Money) (*v1alpha1.Money, error) {
	if m == nil {
		return nil, nil //nolint:nilnil // no ceiling is any price
	}
	money, err := wire.MoneyFrom(field, m)
	if err != nil {
		return nil, err
	}
	return &v1alpha1.Money{Currency: money.Currency, Amount: money.Amount.String()}, nil
}

func askedRenewal(none bool) v1alpha1.Renewal {
	if none {
		return v1alpha1.RenewalNever
	}
	return v1alpha1.RenewalAutomatic
}

func askedNetwork(none bool) v1alpha1.NetworkMode {
	if none {
		return v1alpha1.NetworkNone
	}
	return v1alpha1.NetworkTunnel
}

// tunnelAlone says whether nothing but a tunnel is asked for: no pods, and no other resource.
func tunnelAlone(req *ententev1.CreatePeeringRequest) bool {
	_, pods := req.GetResources().GetAmounts()[peering.Pods]
	return pods && len(req.GetResources().GetAmounts()) == 1 && !req.GetNoNetwork()
}

// askedClasses puts the names of classes in order.
func askedClasses(field string, names []string) ([]string, error) {
	names = slices.Sorted(slices.Values(names))
	if err := peering.CheckClasses(names); err != nil {
		return nil, middleware.BadField(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return names, nil
}

// nameInPool is the name of a PeeringRequest that asks a peer for a pool: a peer can be asked for
// each of its pools. A virtual node's name begins with it, and may be a label of 63 characters.
func nameInPool(peer, pool string) string {
	if pool == "" {
		return peer
	}
	return strings.TrimRight(peer[:min(len(peer), validation.LabelValueMaxLength-1-len(pool))], "-.") + "-" + pool
}

// hashOf tells two asks apart.
func hashOf(request *v1alpha1.PeeringRequest) string {
	// Structs of strings, numbers and maps of them: it cannot fail, and JSON of maps
	// is ordered.
	b, _ := json.Marshal(request.Spec)
	sum := sha256.Sum256(append(b, request.Name...))
	return hex.EncodeToString(sum[:8])
}

// nameFor is the name of a PeeringRequest that asks any peer: derived from the
// call's ID, so that a call that comes twice finds it.
func nameFor(requestID string) string {
	if requestID == "" {
		return "any-" + rand.String(8)
	}
	sum := sha256.Sum256([]byte(requestID))
	return "any-" + hex.EncodeToString(sum[:4])
}

// madeBy returns the PeeringRequest that a call with this ID made before, if any.
func (s *service) madeBy(ctx context.Context, id, mark string) (string, error) {
	var list v1alpha1.PeeringRequestList
	if err := s.cfg.Client.List(ctx, &list); err != nil {
		return "", fmt.Errorf("list peering requests: %w", err)
	}
	for i := range list.Items {
		switch got := list.Items[i].Annotations[annotationRequest]; {
		case got == mark:
			return list.Items[i].Name, nil
		case strings.HasPrefix(got, id+":"):
			return "", middleware.BadField("request_id", "was used for another ask, peering request %s: a new ask needs a new ID", list.Items[i].Name)
		}
	}
	return "", nil
}

// peeringExists answers a call that found its name taken: by itself, when it
// came twice at once, or by another.
func (s *service) peeringExists(ctx context.Context, request *v1alpha1.PeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	var old v1alpha1.PeeringRequest
	if err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(request), &old); err != nil {
		return nil, fmt.Errorf("get peering request %s: %w", request.Name, err)
	}
	if mark := request.Annotations[annotationRequest]; mark != "" && mark == old.Annotations[annotationRequest] {
		return &ententev1.CreatePeeringResponse{PeeringRequest: request.Name}, nil
	}
	e := &peering.Error{
		Reason: peering.ReasonPeeringExists,
		Metadata: map[string]string{
			"peeringRequest": request.Name, "peer": old.Spec.ForeignCluster,
		},
	}
	switch {
	case !old.DeletionTimestamp.IsZero():
		e.Message = fmt.Sprintf("peering request %s is being taken down; try again when it is gone", request.Name)
		e.Metadata["ending"] = "true"
		e.RetryAfter = middleware.RetryConflict
	case old.Spec.ForeignCluster != request.Spec.ForeignCluster:
		e.Message = fmt.Sprintf("peering request %s asks %s: choose another name", request.Name, asked(&old))
	default:
		e.Message = fmt.Sprintf("peering request %s asks %s already", request.Name, asked(&old))
	}
	return nil, e
}

// asked names whom a PeeringRequest asks.
func asked(request *v1alpha1.PeeringRequest) string {
	if request.Spec.ForeignCluster == "" {
		return "any peer"
	}
	return "peer " + request.Spec.ForeignCluster
}

func (s *service) ListPeerings(ctx context.Context, req *ententev1.ListPeeringsRequest) (*ententev1.ListPeeringsResponse, error) {
	var list v1alpha1.PeeringRequestList
	if err := s.cfg.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list peering requests: %w", err)
	}
	part, next, err := pageOf(req, "peerings", list.Items, func(r *v1alpha1.PeeringRequest) string { return r.Name }, peeringMessage)
	return &ententev1.ListPeeringsResponse{Peerings: part, NextPageToken: next}, err
}

func (s *service) GetPeering(ctx context.Context, req *ententev1.GetPeeringRequest) (*ententev1.GetPeeringResponse, error) {
	request, err := s.request(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return &ententev1.GetPeeringResponse{Peering: peeringMessage(request)}, nil
}

func (s *service) request(ctx context.Context, resource string) (*v1alpha1.PeeringRequest, error) {
	name := named("peerings", resource)
	var request v1alpha1.PeeringRequest
	if err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &request); err != nil {
		return nil, peeringUnknown(name, err)
	}
	return &request, nil
}

// peeringUnknown makes an error of reading a PeeringRequest one that callers know.
func peeringUnknown(name string, err error) error {
	if apierrors.IsNotFound(err) {
		return unknown(peering.ReasonPeeringUnknown, "peering", name, "no peering %q is there: no PeeringRequest has that name", name)
	}
	return fmt.Errorf("peering request %s: %w", name, err)
}

// UpdatePeering implements AdminService (AIP-134).
func (s *service) UpdatePeering(ctx context.Context, req *ententev1.UpdatePeeringRequest) (*ententev1.UpdatePeeringResponse, error) {
	name, ok := strings.CutPrefix(req.GetPeering().GetName(), "peerings/")
	if !ok || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, middleware.BadField("peering.name", "want peerings/NAME")
	}
	var opts []ctrlclient.PatchOption
	if req.GetValidateOnly() {
		opts = append(opts, ctrlclient.DryRunAll)
	}
	request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := change(ctx, s.cfg.Client, request, func() error {
		return updateRequest(request, req.GetPeering(), req.GetUpdateMask())
	}, opts...)
	if err != nil {
		return nil, peeringUnknown(name, err)
	}
	resp := &ententev1.UpdatePeeringResponse{Peering: peeringMessage(request)}
	if req.GetValidateOnly() {
		if err := s.previewRevision(ctx, request, resp); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// DeletePeering implements AdminService: the contract ends with the ask.
func (s *service) DeletePeering(ctx context.Context, req *ententev1.DeletePeeringRequest) (*ententev1.DeletePeeringResponse, error) {
	request, err := s.request(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if err := s.remove(ctx, request); err != nil {
		return nil, fmt.Errorf("delete peering request %s: %w", request.Name, err)
	}
	return &ententev1.DeletePeeringResponse{}, nil
}

// peeringMessage is a PeeringRequest as a message.
func peeringMessage(request *v1alpha1.PeeringRequest) *ententev1.Peering {
	p := &ententev1.Peering{
		Name:         "peerings/" + request.Name,
		Peer:         "peers/" + anyPeer,
		Resources:    resourceMessage(request.Spec.Resources),
		Duration:     durationMessage(request.Spec.Duration),
		PriceCeiling: moneyMessage(request.Spec.PriceCeiling),
		NoRenewal:    request.Spec.Renewal == v1alpha1.RenewalNever,
		NoNetwork:    request.Spec.Network == v1alpha1.NetworkNone,
		Node:         request.Status.Node,
		Pool:         request.Spec.Pool,
	}
	if request.Spec.ForeignCluster != "" {
		p.Peer = "peers/" + request.Spec.ForeignCluster
	}
	if c := meta.FindStatusCondition(request.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
		p.Accepted = conditionMessage(*c)
	}
	if request.Status.Contract != "" {
		p.Contract = "contracts/" + request.Status.Contract
		if provider := provider(request); provider != "" {
			p.Provider = "peers/" + provider
		}
	}
	return p
}

// provider is the ForeignCluster that lends, or is asked to.
func provider(request *v1alpha1.PeeringRequest) string {
	return cmp.Or(request.Status.ForeignCluster, request.Spec.ForeignCluster)
}

// EndPeering implements AdminService. It says what is to end and leaves ending
// it to the reconcilers, which do not wait for the peer.
func (s *service) EndPeering(ctx context.Context, req *ententev1.EndPeeringRequest) (*ententev1.EndPeeringResponse, error) {
	fc, err := s.foreignCluster(ctx, req.GetPeer())
	if err != nil {
		return nil, err
	}
	var contracts v1alpha1.ContractList
	var asks v1alpha1.PeeringRequestList
	if err := readAll(ctx, s.cfg.Client, &contracts, &asks); err != nil {
		return nil, err
	}
	ending := slices.DeleteFunc(contracts.Items, func(c v1alpha1.Contract) bool {
		ours := c.Spec.Role == v1alpha1.ContractConsumer || req.GetForget()
		return c.Spec.PeerID != fc.Spec.ClusterID || !ours || closed(&c)
	})
	resp := &ententev1.EndPeeringResponse{}
	for i := range ending {
		resp.Pods += ending[i].Status.Pods
	}
	if req.GetRefuseIfRunning() && resp.GetPods() > 0 {
		return nil, &peering.Error{
			Reason:   peering.ReasonPodsRunning,
			Message:  fmt.Sprintf("%d pods run by the contracts with %s", resp.GetPods(), fc.Name),
			Metadata: map[string]string{"pods": fmt.Sprint(resp.GetPods())},
		}
	}
	if err := s.leaveOut(ctx, asks.Items, fc, req.GetForget()); err != nil {
		return nil, err
	}
	for i := range ending {
		if err := s.terminate(ctx, &ending[i], req.GetNow()); err != nil {
			return nil, err
		}
	}
	for i := range asks.Items {
		ask := &asks.Items[i]
		if ask.Spec.ForeignCluster != fc.Name {
			continue
		}
		if err := s.remove(ctx, ask); err != nil {
			return nil, fmt.Errorf("delete peering request %s: %w", ask.Name, err)
		}
	}
	if req.GetForget() {
		if err := s.remove(ctx, fc); err != nil {
			return nil, fmt.Errorf("delete foreign cluster %s: %w", fc.Name, err)
		}
	}
	return resp, nil
}

// leaveOut has the asks of any peer that this one fulfils look for another. They
// would only come back to it if it were not left out, so that is written before
// their contracts end. A peer that is forgotten is not asked anyway.
func (s *service) leaveOut(ctx context.Context, asks []v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster, forget bool) error {
	for i := range asks {
		ask := &asks[i]
		if forget || ask.Spec.ClusterSelector == nil || ask.Status.ForeignCluster != fc.Name {
			continue
		}
		err := change(ctx, s.cfg.Client, ask, func() error {
			ask.LeaveOut(fc.Name)
			return nil
		})
		if ctrlclient.IgnoreNotFound(err) != nil {
			return fmt.Errorf("leave %s out of peering request %s: %w", fc.Name, ask.Name, err)
		}
	}
	return nil
}
