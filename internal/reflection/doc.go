// Package reflection makes Services, ConfigMaps and Secrets here of what a consumer says of its own:
// it reads them, keeps on Services what was said of them, and writes their EndpointSlices. Which pods
// and addresses endpoints are here, and which contract holds what, is the business of internal/offload.
package reflection
