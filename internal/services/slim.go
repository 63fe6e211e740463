package services

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// SlimSlice reduces the EndpointSlices in a cache to what is announced of exported Services: a cluster has as many
// endpoints as it has pods, or more.
func SlimSlice(o any) (any, error) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok {
		return o, nil
	}
	slim := &discoveryv1.EndpointSlice{
		TypeMeta: s.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion, DeletionTimestamp: s.DeletionTimestamp,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.Labels[discoveryv1.LabelServiceName]},
		},
		AddressType: s.AddressType, Ports: s.Ports,
	}
	if s.Labels[api.LabelManaged] == api.Manager {
		slim.Labels[api.LabelManaged] = api.Manager
		return slim, nil // they are ignored
	}
	for _, e := range s.Endpoints {
		slim.Endpoints = append(slim.Endpoints, discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, Hostname: e.Hostname})
	}
	return slim, nil
}
