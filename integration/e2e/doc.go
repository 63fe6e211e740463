// Package e2e runs Entente between real clusters: it brings up a lab, installs
// the chart with helm as a user would, drives the CLI and kubectl, disturbs what
// can be disturbed, and looks whether anything is left afterwards. The demo and
// the end-to-end tests are written with it.
//
// A World is a lab of two clusters: home, called rome, which consumes, and
// abroad, called milan, which provides. Both have the same pod and service
// prefixes.
package e2e
