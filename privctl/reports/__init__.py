"""Privacy reports: conversion to and from JSON, files, and signatures."""
