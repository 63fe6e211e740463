package services

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// importSnapshot is everything that decides about an ImportedService.
type importSnapshot struct {
	imported *api.ImportedService
	// peer is the cluster that exports it; nil if there is none.
	peer *api.ForeignCluster
	// contract is the contract by which it is imported; empty if there is none.
	contract string
	// last is the last state that the peer sent; nil if it has sent none since this agent started.
	last *peering.ExportedService
}

// importPlan is what to do for an ImportedService.
type importPlan struct {
	condition metav1.Condition
	// change: the Service and its endpoints are updated to this plan; otherwise they stay as they are.
	change bool
	// service is the Service; nil leaves it as it is, with its address.
	service *corev1.Service
	// object is the peer's Service, with its endpoints' addresses in this cluster.
	object peering.ServiceObject
	// resolve translates the endpoints; reached is how many of them have an address here.
	resolve endpoints.Resolver
	reached int
}

// planImport decides about an ImportedService. A Service that exists keeps its address, and loses its endpoints
// when it may no longer be used. As long as nothing was sent since this agent started, it stays as it is, except that
// endpoints behind a tunnel that is down are not used.
func planImport(s importSnapshot, resolve endpoints.Resolver) importPlan {
	no := func(change bool, reason, message string) importPlan {
		return importPlan{condition: condition(metav1.ConditionFalse, reason, message), change: change, resolve: resolve}
	}
	name := s.imported.Spec.ForeignCluster
	down := fmt.Sprintf("the tunnel to %s passes no traffic; no endpoint is used until it does", name)
	switch {
	case s.peer == nil:
		return no(true, "NoForeignCluster", fmt.Sprintf("there is no ForeignCluster %s: correct spec.foreignCluster", name))
	case s.contract == "":
		return no(true, api.ReasonNoContract, fmt.Sprintf("no contract with %[1]s lets this cluster import: ask for one with a tunnel while a policy of theirs exports Services to it; one that is older does so from its next revision, as after `entente amend %[1]s` with another amount", name))
	case s.last == nil && !Passes(s.peer):
		return no(true, "NetworkDown", down)
	case s.last == nil:
		p := no(false, "Waiting", fmt.Sprintf("%s has not sent the state of the Service yet", name))
		p.condition.Status = metav1.ConditionUnknown
		return p
	case s.last.Refusal != "":
		return no(true, "NotExported", peering.Text(s.last.Refusal, peering.MaxMessageLen))
	}
	p := importPlan{change: true, service: importedService(s), object: s.last.Service, resolve: resolve}
	if !Passes(s.peer) {
		p.condition = condition(metav1.ConditionFalse, "NetworkDown", down)
		p.object.Endpoints = nil
		return p
	}
	for _, e := range p.object.Endpoints {
		if _, ok := resolve(e); ok {
			p.reached++
		}
	}
	message := fmt.Sprintf("%d endpoints", p.reached)
	if n := len(p.object.Endpoints) - p.reached; n > 0 {
		message += fmt.Sprintf("; %d more cannot be reached from here", n)
	}
	p.condition = condition(metav1.ConditionTrue, "Imported", message)
	return p
}

// slices returns the EndpointSlices of the Service.
func (p importPlan) slices(svc *corev1.Service) []*discoveryv1.EndpointSlice {
	out, _ := endpoints.Slices(svc, p.object, p.resolve)
	return out
}

func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return store.Condition(api.ConditionImported, status, reason, message)
}

// importedService returns the Service that represents the peer's: without a selector, and not exported further.
func importedService(s importSnapshot) *corev1.Service {
	out := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.imported.Namespace, Name: s.imported.Name,
			Labels:      map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: s.peer.Spec.ClusterID},
			Annotations: map[string]string{annotationImported: s.peer.Name + "/" + s.last.String()},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: api.GroupVersion.String(), Kind: "ImportedService", Name: s.imported.Name, UID: s.imported.UID, Controller: new(true),
			}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
			Ports: endpoints.Ports(s.last.Service.Ports),
		},
	}
	if s.last.Service.Headless {
		out.Spec.ClusterIP = corev1.ClusterIPNone
	}
	endpoints.Affinity(&out.Spec, s.last.Service)
	return out
}
