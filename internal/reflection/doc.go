// Package reflection creates Services, ConfigMaps and Secrets here from a consumer's: it decodes them,
// keeps the consumer's form of a Service in an annotation, and writes EndpointSlices. Package
// internal/offload knows which pods and addresses the endpoints are here, and which contract holds an
// object.
package reflection
