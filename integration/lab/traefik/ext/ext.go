// Package ext stands in for a package that Traefik's configuration embeds and that is in no module that
// is served. Builds of Traefik itself embed empty structures, too.
package ext

// HTTP is added to the configuration of HTTP.
type HTTP struct{}

// Router is added to that of a router.
type Router struct{}
