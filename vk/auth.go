package vk

import (
	"context"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// accesses returns the permissions for a request; the caller needs one of them. They are those of a
// kubelet, except that exec, attach and port-forward always need create: over a WebSocket they are
// a GET, and callers that may only read must not run commands. If neither pod nor path names a
// node, the caller needs the permission for every node.
func accesses(method string, t target, node string) []authorizationv1.ResourceAttributes {
	verb := map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
		http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[method]
	switch t.verb {
	case "exec", "attach", "portForward":
		verb = "create"
	}
	if verb == "" {
		return nil
	}
	proxy := authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: "proxy", Name: node}
	switch t.verb {
	case "pods", "runningpods", "metrics", "stats":
		own := proxy
		if own.Subresource = t.verb; t.verb == "runningpods" {
			own.Subresource = "pods"
		}
		return []authorizationv1.ResourceAttributes{own, proxy}
	}
	return []authorizationv1.ResourceAttributes{proxy}
}

// authorise reports whether a caller has at least one of the permissions oneOf.
func (k *Kubelet) authorise(ctx context.Context, user authenticationv1.UserInfo, oneOf []authorizationv1.ResourceAttributes) (bool, error) {
	for _, permission := range oneOf {
		if ok, err := k.auth.Allowed(ctx, user, permission); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}
