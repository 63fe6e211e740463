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

// anyPeer means any peer that provides what is asked for, in peers/-.
const anyPeer = "-"

// annotationRequest has the ID of the call that created a PeeringRequest, and a hash of what it
// asked for: a repeated call creates only one.
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
		idAndHash := id + ":" + hashOf(request)
		request.Annotations = map[string]string{annotationRequest: idAndHash}
		made, err := s.madeBy(ctx, id, idAndHash)
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

// newRequest returns the PeeringRequest that a request asks for. It has no name if the request
// leaves that to this cluster.
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

// askedResources reads amounts by the rules of package peering, so that amounts that no provider
// accepts are refused here. zero allows an amount of 0, which gives a resource back.
func askedResources(field string, m *ententev1.ResourceList, zero bool) (corev1.ResourceList, error) {
	resources, err := peering.ParseResources(m.GetAmounts())
	if err != nil {
		return nil, middleware.BadField(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	var out corev1.ResourceList
	for _, name := range resources.Names() {
		q := resources[name]
		if q.IsZero() && !zero {
			return nil, middleware.BadField(field, "%s is 0: leave it out", name)
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
		return nil, nil //nolint:nilnil // without a duration the provider chooses
	}
	d := m.AsDuration()
	if err := m.CheckValid(); err != nil || d <= 0 || d > peering.MaxContractLife {
		return nil, middleware.BadField(field, "must be positive and at most %s", peering.MaxContractLife)
	}
	return &metav1.Duration{Duration: d}, nil
}

func askedMoney(field string, m *ententev1.Money) (*v1alpha1.Money, error) {
	if m == nil {
		return nil, nil //nolint:nilnil // without a ceiling any price is accepted
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

// tunnelAlone reports whether only a tunnel is asked for: no pods, and no other resource.
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

// hashOf is a hash of what a PeeringRequest asks for.
func hashOf(request *v1alpha1.PeeringRequest) string {
	// Structs of strings, numbers and maps of them: it cannot fail, and JSON of maps
	// is ordered.
	b, _ := json.Marshal(request.Spec)
	sum := sha256.Sum256(append(b, request.Name...))
	return hex.EncodeToString(sum[:8])
}

// nameFor is the name of a PeeringRequest that asks any peer. It is derived from the call's ID,
// so that a repeated call finds it.
func nameFor(requestID string) string {
	if requestID == "" {
		return "any-" + rand.String(8)
	}
	sum := sha256.Sum256([]byte(requestID))
	return "any-" + hex.EncodeToString(sum[:4])
}

// madeBy returns the PeeringRequest that a call with this ID created before, if any.
func (s *service) madeBy(ctx context.Context, id, idAndHash string) (string, error) {
	var list v1alpha1.PeeringRequestList
	if err := s.cfg.Client.List(ctx, &list); err != nil {
		return "", fmt.Errorf("list peering requests: %w", err)
	}
	for i := range list.Items {
		switch got := list.Items[i].Annotations[annotationRequest]; {
		case got == idAndHash:
			return list.Items[i].Name, nil
		case strings.HasPrefix(got, id+":"):
			return "", middleware.BadField("request_id", "was used for another ask, peering request %s: a new ask needs a new ID", list.Items[i].Name)
		}
	}
	return "", nil
}

// peeringExists returns the response to a call whose name is taken: by the same call, if it came
// twice at once, or by another.
func (s *service) peeringExists(ctx context.Context, request *v1alpha1.PeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	var old v1alpha1.PeeringRequest
	if err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(request), &old); err != nil {
		return nil, fmt.Errorf("get peering request %s: %w", request.Name, err)
	}
	if idAndHash := request.Annotations[annotationRequest]; idAndHash != "" && idAndHash == old.Annotations[annotationRequest] {
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
		e.Message = fmt.Sprintf("peering request %s is being deleted; try again when it is gone", request.Name)
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

// peeringUnknown turns an error of reading a PeeringRequest into one that callers see.
func peeringUnknown(name string, err error) error {
	if apierrors.IsNotFound(err) {
		return unknown(peering.ReasonPeeringUnknown, "peering", name, "there is no peering %q: no PeeringRequest has that name", name)
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

// DeletePeering implements AdminService: the contract ends with the PeeringRequest.
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
		Generation:   request.Generation,
		NodeSelector: request.Spec.NodeSelector, StorageClasses: request.Spec.StorageClasses, RuntimeClasses: request.Spec.RuntimeClasses,
	}
	if request.Spec.ForeignCluster != "" {
		p.Peer = "peers/" + request.Spec.ForeignCluster
	}
	if c := meta.FindStatusCondition(request.Status.Conditions, v1alpha1.ConditionAccepted); c != nil {
		p.Accepted, p.AcceptedGeneration = conditionMessage(*c), c.ObservedGeneration
	}
	if request.Status.Contract != "" {
		p.Contract, p.ContractGeneration = "contracts/"+request.Status.Contract, request.Status.ObservedGeneration
		if provider := provider(request); provider != "" {
			p.Provider = "peers/" + provider
		}
	}
	return p
}

// provider is the ForeignCluster that is the provider, or is asked to be.
func provider(request *v1alpha1.PeeringRequest) string {
	return cmp.Or(request.Status.ForeignCluster, request.Spec.ForeignCluster)
}

// EndPeering implements AdminService. It deletes objects and ends contracts; the reconcilers do
// the rest and do not wait for the peer.
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
			Message:  fmt.Sprintf("%d pods run under the contracts with %s", resp.GetPods(), fc.Name),
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

// leaveOut excludes a peer from the asks of any peer that it fulfils, before their contracts end:
// otherwise they would choose it again. A peer that is forgotten is not asked anyway.
func (s *service) leaveOut(ctx context.Context, asks []v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster, forget bool) error {
	for i := range asks {
		ask := &asks[i]
		if forget || ask.Spec.ClusterSelector == nil || ask.Status.ForeignCluster != fc.Name {
			continue
		}
		err := change(ctx, s.cfg.Client, ask, func() error {
			ask.Exclude(fc.Name)
			return nil
		})
		if ctrlclient.IgnoreNotFound(err) != nil {
			return fmt.Errorf("leave %s out of peering request %s: %w", fc.Name, ask.Name, err)
		}
	}
	return nil
}
