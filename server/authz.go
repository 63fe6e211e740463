package server

import (
	"context"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// permission is a Kubernetes permission on a resource of entente.dev.
type permission struct {
	verb, resource, namespace, name string
}

// String returns it as in "create tokens".
func (p permission) String() string {
	s := p.verb + " " + p.resource + "." + v1alpha1.GroupVersion.Group
	if p.name != "" {
		s += " " + p.name
	}
	if p.namespace != "" {
		s += " in namespace " + p.namespace
	}
	return s
}

// permissions returns what a call to the AdminService needs; false for methods
// that are not known, which are refused.
func permissions(method string, request any) ([]permission, bool) {
	const foreignClusters, slices, offloadings = "foreignclusters", "resourceslices", "namespaceoffloadings"
	switch method {
	case ententev1.AdminService_GetInfo_FullMethodName, ententev1.AdminService_ListPeers_FullMethodName:
		return []permission{{verb: "list", resource: foreignClusters}}, true
	case ententev1.AdminService_GetPeer_FullMethodName:
		r, _ := request.(*ententev1.GetPeerRequest)
		return []permission{{verb: "get", resource: foreignClusters, name: permissionName(r.GetName())}}, true
	case ententev1.AdminService_CreateToken_FullMethodName:
		return []permission{{verb: "create", resource: "tokens"}}, true
	case ententev1.AdminService_JoinPeer_FullMethodName:
		return []permission{{verb: "create", resource: foreignClusters}}, true
	case ententev1.AdminService_CreatePeering_FullMethodName:
		return []permission{{verb: "create", resource: slices}}, true
	case ententev1.AdminService_EndPeering_FullMethodName:
		r, _ := request.(*ententev1.EndPeeringRequest)
		need := []permission{{verb: "delete", resource: slices}}
		if r.GetForget() {
			need = append(need, permission{verb: "delete", resource: foreignClusters, name: permissionName(r.GetPeer())})
		}
		return need, true
	case ententev1.AdminService_OffloadNamespace_FullMethodName:
		r, _ := request.(*ententev1.OffloadNamespaceRequest)
		return []permission{{verb: "create", resource: offloadings, namespace: namespaceName(r.GetNamespace())}}, true
	case ententev1.AdminService_UnoffloadNamespace_FullMethodName:
		r, _ := request.(*ententev1.UnoffloadNamespaceRequest)
		return []permission{{verb: "delete", resource: offloadings, namespace: namespaceName(r.GetNamespace())}}, true
	}
	return nil, false
}

func peerName(resource string) string      { return strings.TrimPrefix(resource, "peers/") }
func namespaceName(resource string) string { return strings.TrimPrefix(resource, "namespaces/") }

// permissionName is the name for which permission is asked. A cluster ID may
// stand for a ForeignCluster of any name, so permission for all is asked then.
func permissionName(resource string) string {
	name := peerName(resource)
	if _, err := peering.ParseClusterID(name); err == nil {
		return ""
	}
	return name
}

// authorize asks the API server whether a user has each permission.
func (a *authenticator) authorize(ctx context.Context, user authenticationv1.UserInfo, need []permission) error {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	for _, p := range need {
		review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
					Verb: p.verb, Resource: p.resource, Namespace: p.namespace, Name: p.name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return &wire.Error{
				Reason: wire.ReasonKubernetes, Message: "the cluster's API server could not say what you may do",
				RetryAfter: retryKubernetes, Err: fmt.Errorf("review access: %w", err),
			}
		}
		if !review.Status.Allowed || review.Status.Denied {
			return &wire.Error{
				Reason:  wire.ReasonCallerNotAllowed,
				Message: fmt.Sprintf("user %q may not %s: ask for a role that allows it", wire.Text(user.Username, 256), p),
				Metadata: map[string]string{
					"verb": p.verb, "resource": p.resource, "namespace": p.namespace, "name": p.name,
				},
			}
		}
	}
	return nil
}
