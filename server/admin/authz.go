package admin

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
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

// Roles of the chart that people are bound to.
const (
	roleView    = "entente-view"
	roleOffload = "entente-offload"
	roleAdmin   = "entente-admin"
)

// grant returns the command by which an administrator binds a user to a role with the permission.
func (p permission) grant(user string) string {
	subject := "--user=NAME"
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok && plainName.MatchString(account) {
		subject = "--serviceaccount=" + account
	} else if plainName.MatchString(user) {
		subject = "--user=" + user
	}
	switch {
	case p.namespace != "":
		return fmt.Sprintf("kubectl -n %s create rolebinding NAME --clusterrole=%s %s", p.namespace, roleOffload, subject)
	case p.verb == "get" || p.verb == "list":
		return fmt.Sprintf("kubectl create clusterrolebinding NAME --clusterrole=%s %s", roleView, subject)
	}
	return fmt.Sprintf("kubectl create clusterrolebinding NAME --clusterrole=%s %s", roleAdmin, subject)
}

// plainName matches names that need no quoting in a shell.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:@._/-]{0,255}$`)

// Resources of group entente.dev. There are no objects of tokens and identity: they exist for
// roles to name.
const (
	resourcePeers       = "foreignclusters"
	resourcePolicies    = "peeringpolicies"
	resourcePeerings    = "peeringrequests"
	resourceContracts   = "contracts"
	resourceOffloadings = "namespaceoffloadings"
	resourceTokens      = "tokens"
	resourceIdentity    = "identity"
)

// right is what a method needs: a verb on a resource, or on the one of them that the
// request names.
type right struct {
	verb, resource string
	// name returns the name in the request. It is nil for a method that concerns all objects.
	name func(request any) string
}

//nolint:gochecknoglobals // a constant table
var rights = map[string]right{
	ententev1.AdminService_GetInfo_FullMethodName:               {"list", resourcePeers, nil},
	ententev1.AdminService_ListPeers_FullMethodName:             {"list", resourcePeers, nil},
	ententev1.AdminService_WatchPeers_FullMethodName:            {"list", resourcePeers, nil},
	ententev1.AdminService_WatchEvents_FullMethodName:           {"list", resourcePeers, nil},
	ententev1.AdminService_ListPeeringRequests_FullMethodName:   {"list", resourcePeers, nil},
	ententev1.AdminService_GetPeer_FullMethodName:               {"get", resourcePeers, peerIn},
	ententev1.AdminService_JoinPeer_FullMethodName:              {"create", resourcePeers, nil},
	ententev1.AdminService_IntroducePeer_FullMethodName:         {"create", resourcePeers, nil},
	ententev1.AdminService_ApprovePeer_FullMethodName:           {"update", resourcePeers, peerIn},
	ententev1.AdminService_DenyPeer_FullMethodName:              {"update", resourcePeers, peerIn},
	ententev1.AdminService_ApprovePeeringRequest_FullMethodName: {"update", resourcePeers, requestIn},
	ententev1.AdminService_DenyPeeringRequest_FullMethodName:    {"update", resourcePeers, requestIn},
	ententev1.AdminService_CreateToken_FullMethodName:           {"create", resourceTokens, nil},
	ententev1.AdminService_ListTokens_FullMethodName:            {"list", resourceTokens, nil},
	ententev1.AdminService_RevokeToken_FullMethodName:           {"delete", resourceTokens, nameIn("tokens")},
	ententev1.AdminService_CreatePeering_FullMethodName:         {"create", resourcePeerings, nil},
	ententev1.AdminService_ListPeerings_FullMethodName:          {"list", resourcePeerings, nil},
	ententev1.AdminService_GetPeering_FullMethodName:            {"get", resourcePeerings, nameIn("peerings")},
	ententev1.AdminService_UpdatePeering_FullMethodName:         {"update", resourcePeerings, nameIn("peerings")},
	ententev1.AdminService_DeletePeering_FullMethodName:         {"delete", resourcePeerings, nameIn("peerings")},
	ententev1.AdminService_EndPeering_FullMethodName:            {"delete", resourcePeerings, nil}, // and see permissions
	ententev1.AdminService_TestPolicy_FullMethodName:            {"list", resourcePolicies, nil},
	ententev1.AdminService_GetNetworkStatus_FullMethodName:      {"list", resourcePeers, nil},
	ententev1.AdminService_PlanNetwork_FullMethodName:           {"list", resourcePeers, nil},
	ententev1.AdminService_RotatePresharedKey_FullMethodName:    {"update", resourcePeers, peerIn},
	ententev1.AdminService_RotateNodeKeys_FullMethodName:        {"update", resourceIdentity, nil},
	ententev1.AdminService_GetNetworkParameters_FullMethodName:  {"list", resourcePeers, nil},
	ententev1.AdminService_ConnectInBand_FullMethodName:         {"create", resourcePeers, nil},
	ententev1.AdminService_ListContracts_FullMethodName:         {"list", resourceContracts, nil},
	ententev1.AdminService_ListUsage_FullMethodName:             {"list", resourceContracts, nil},
	ententev1.AdminService_GetContract_FullMethodName:           {"get", resourceContracts, nameIn("contracts")},
	ententev1.AdminService_TerminateContract_FullMethodName:     {"update", resourceContracts, nameIn("contracts")},
	ententev1.AdminService_RolloverIdentity_FullMethodName:      {"update", resourceIdentity, nil},
	ententev1.AdminService_OffloadNamespace_FullMethodName:      {"create", resourceOffloadings, nil},
	ententev1.AdminService_ListOffloadings_FullMethodName:       {"list", resourceOffloadings, nil},
	ententev1.AdminService_UnoffloadNamespace_FullMethodName:    {"delete", resourceOffloadings, nil},
}

// permissions returns the permissions that a call to the AdminService needs; false for unknown
// methods, which are refused. Streams have no request yet.
func permissions(method string, request any) ([]permission, bool) {
	r, ok := rights[method]
	if !ok {
		return nil, false
	}
	need := []permission{{verb: r.verb, resource: r.resource}}
	if r.name != nil {
		need[0].name = r.name(request)
	}
	switch m := request.(type) {
	case *ententev1.EndPeeringRequest:
		if m.GetForget() {
			need = append(need, permission{verb: "delete", resource: resourcePeers, name: permissionName(m.GetPeer())})
		}
	case interface{ GetNamespace() string }:
		need[0].namespace = namespaceName(m.GetNamespace())
	}
	return need, true
}

// nameOf returns the name that a request is about.
func nameOf(request any) string {
	switch m := request.(type) {
	case *ententev1.UpdatePeeringRequest:
		return m.GetPeering().GetName()
	case interface{ GetName() string }:
		return m.GetName()
	}
	return ""
}

func nameIn(collection string) func(any) string {
	return func(request any) string { return named(collection, nameOf(request)) }
}

func peerIn(request any) string { return permissionName(nameOf(request)) }

// requestIn returns the peer of the request that a call is about.
func requestIn(request any) string {
	peer, _ := requestName(nameOf(request))
	return permissionName(peer)
}

// mutates reports whether a method of the AdminService changes something: whether it needs
// another permission than get or list.
func mutates(method string) bool {
	needs, ok := permissions(method, nil)
	return ok && slices.ContainsFunc(needs, func(p permission) bool { return p.verb != "get" && p.verb != "list" })
}

func peerName(resource string) string      { return named("peers", resource) }
func namespaceName(resource string) string { return named("namespaces", resource) }

// permissionName is the name of the object for which permission is required. A cluster ID may
// belong to a ForeignCluster of any name, and - means each peer, so these need permission for
// all.
func permissionName(resource string) string {
	name := peerName(resource)
	if _, err := peering.ParseClusterID(name); err == nil || name == anyPeer {
		return ""
	}
	return name
}

// authorize asks the API server whether a user has each permission.
func (a *Server) authorize(ctx context.Context, user authenticationv1.UserInfo, need []permission) error {
	for _, p := range need {
		allowed, err := a.reviewer.Allowed(ctx, user, authorizationv1.ResourceAttributes{
			Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version,
			Verb: p.verb, Resource: p.resource, Namespace: p.namespace, Name: p.name,
		})
		if err != nil {
			return &peering.Error{
				Reason: peering.ReasonKubernetes, Message: "the cluster's API server could not review your permissions",
				RetryAfter: middleware.RetryKubernetes, Err: err,
			}
		}
		if !allowed {
			return &peering.Error{
				Reason:  peering.ReasonCallerNotAllowed,
				Message: fmt.Sprintf("user %q may not %s: an administrator can allow it with: %s", peering.Text(user.Username, 256), p, p.grant(user.Username)),
				Metadata: map[string]string{
					"verb": p.verb, "resource": p.resource, "namespace": p.namespace, "name": p.name,
				},
			}
		}
	}
	return nil
}
